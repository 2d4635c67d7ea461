// SPDX-License-Identifier: MIT
#include "backends/offload/both_steps.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backends/offload/host_step.h"
#include "backends/offload/streamed_step.h"

namespace tessera {

BothSteps::BothSteps(const UnitOptimizerContext& context, const ParallelConfig& config,
                     Communicator& world, const HostShare& share,
                     const std::array<double, 2>& costs)
    : context_(context), division_(costs) {
  // Elements are inversely proportional to costs.
  const double on_host = costs[1] / (costs[0] + costs[1]);
  const auto host_numel =
      static_cast<int64_t>(on_host * static_cast<double>(context.expected_numel));
  sides_[0] = std::make_unique<HostStep>(shown_context(context_, units_[0], host_numel), config,
                                         world, share);
  sides_[1] = std::make_unique<StreamedStep>(
      shown_context(context_, units_[1], context.expected_numel - host_numel), config, world,
      share);
}

void BothSteps::adopt(size_t unit, const at::Tensor& full_fp32) {
  const ParameterUnit& adopted = context_.units[unit];
  const size_t side = adopted.frozen ? 0 : division_.next_side(adopted.layout.shard_numel());
  side_of_.push_back(side);
  for (const size_t i : {0, 1}) {
    show(adopted, i == side, units_[i]);
    sides_[i]->adopt(unit, full_fp32);
  }
}

void BothSteps::prepare(ParameterStore& parameters, GradientStore& gradients,
                        const OptimizerFactory& factory) {
  for (const auto& side : sides_) side->prepare(parameters, gradients, factory);
}

void BothSteps::step(const StepScalars& scalars) {
  sides_[0]->step(scalars);  // its worker starts as soon as the scalars are known
  sides_[1]->step(scalars);
}

void BothSteps::restored() {
  const at::NoGradGuard no_grad;
  sides_[1]->step_count().copy_(sides_[0]->step_count());
}

void BothSteps::add_memory(StrategyMemory& memory) const {
  for (const auto& side : sides_) side->add_memory(memory);
}

OffloadReport BothSteps::report() {
  const OffloadReport host = sides_[0]->report(), streamed = sides_[1]->report();
  const auto rate = [](int64_t a, double rate_a, int64_t b, double rate_b) {
    const double seconds = (rate_a > 0 ? static_cast<double>(a) / rate_a : 0) +
                           (rate_b > 0 ? static_cast<double>(b) / rate_b : 0);
    return seconds > 0 ? static_cast<double>(a + b) / seconds : 0;
  };
  const auto stall = [](const OffloadReport& one) { return (1 - one.hidden) * one.step_s; };
  OffloadReport both;
  both.bytes_to_host = host.bytes_to_host + streamed.bytes_to_host;
  both.bytes_to_device = host.bytes_to_device + streamed.bytes_to_device;
  both.to_host_bytes_per_s = rate(host.bytes_to_host, host.to_host_bytes_per_s,
                                  streamed.bytes_to_host, streamed.to_host_bytes_per_s);
  both.to_device_bytes_per_s = rate(host.bytes_to_device, host.to_device_bytes_per_s,
                                    streamed.bytes_to_device, streamed.to_device_bytes_per_s);
  both.update_elements_per_s = host.update_elements_per_s;
  both.step_s = std::max(host.step_s, streamed.step_s);
  if (both.step_s > 0) {
    both.hidden = std::clamp(1 - (stall(host) + stall(streamed)) / both.step_s, 0.0, 1.0);
  }
  return both;
}

}  // namespace tessera
