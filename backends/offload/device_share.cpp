// SPDX-License-Identifier: MIT
#include "backends/offload/device_share.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace tessera {
DeviceShare::DeviceShare(const UnitOptimizerContext& context, const UnitOptimizerFactory& offloaded,
                         std::shared_ptr<DeviceStateBudget> room)
    : context_(context),
      master_(context.parameter_dtype == at::kFloat ? 0 : 4),
      room_(std::move(room)),
      on_device_(std::make_unique<DeviceOptimizer>(shown_context(context_, units_on_device_, 0))) {
  const double element = master_ + context_.state_bytes;
  const auto stays = element > 0 ? static_cast<int64_t>(room_->left() / element) : 0;
  const int64_t expected = std::max<int64_t>(0, context_.expected_numel - stays);
  offloaded_ = offloaded(shown_context(context_, units_offloaded_, expected));
}

void DeviceShare::adopt(size_t unit, const at::Tensor& full_fp32) {
  const ParameterUnit& adopted = context_.units[unit];
  const bool stays = !adopted.frozen && room_->take(adopted.layout, master_ + context_.state_bytes,
                                                    master_ + context_.small_state_bytes);
  stays_.push_back(stays);
  show(adopted, stays, units_on_device_);
  show(adopted, !stays, units_offloaded_);
  on_device_->adopt(unit, full_fp32);
  offloaded_->adopt(unit, full_fp32);
}

void DeviceShare::prepare(ParameterStore& parameters, GradientStore& gradients,
                          const OptimizerFactory& factory) {
  on_device_->prepare(parameters, gradients, factory);
  offloaded_->prepare(parameters, gradients, factory);
}

void DeviceShare::step(const StepScalars& scalars) {
  offloaded_->step(scalars);  // starts as soon as the scalars are known
  on_device_->step(scalars);
}

void DeviceShare::restored() {
  const at::NoGradGuard no_grad;
  offloaded_->step_count().copy_(on_device_->step_count());
  offloaded_->restored();
}

void DeviceShare::add_memory(StrategyMemory& memory) const {
  on_device_->add_memory(memory);
  offloaded_->add_memory(memory);
}

}  // namespace tessera
