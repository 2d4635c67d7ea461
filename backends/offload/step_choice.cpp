// SPDX-License-Identifier: MIT
#include "backends/offload/step_choice.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#include "lib/core/clock.h"
#include "lib/core/host_memory.h"
#include "lib/core/host_threads.h"
#include "lib/ops/moment_map.h"
#include "lib/ops/update.h"
#include "tessera/core/device.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {
namespace {

// More than a host's caches hold, so that memory is measured.
constexpr int64_t kHostNumel = int64_t{1} << 25;
constexpr int64_t kLinkBytes = int64_t{64} << 20;
constexpr int kTrials = 3;

at::ScalarType moments_of_bytes(double state_bytes) {
  if (state_bytes >= 8) return at::kFloat;
  return state_bytes >= 4 || state_bytes == 0 ? at::kBFloat16 : at::kByte;
}

// AdamW on the rank's cores, with moments that have the optimizer's bytes.
class HostTrial {
 public:
  HostTrial(const UnitOptimizerContext& context, int64_t numel, HostThreads& threads)
      : numel_(numel), threads_(threads), moments_(moments_of_bytes(context.state_bytes)) {
    const auto zeros = [&](int64_t count, at::ScalarType dtype) {
      return host_zeros(count, dtype, false, threads);
    };
    parameter_ = zeros(numel, at::kFloat);
    for (at::Tensor& moment : moment_) moment = zeros(numel, moments_);
    if (moments_ == at::kByte) {
      for (at::Tensor& scales : scales_) {
        scales = zeros((numel + ops::kMomentBlock - 1) / ops::kMomentBlock, at::kFloat);
      }
    }
    gradient_ = zeros(numel, context.parameter_dtype);
    if (context.parameter_dtype != at::kFloat) low_precision_ = gradient_;
  }

  double seconds() {
    const double begin = now_s();
    threads_.run((numel_ + kHostChunk - 1) / kHostChunk, [&](int64_t chunk) { update(chunk); });
    return now_s() - begin;
  }

 private:
  void update(int64_t chunk) {
    const FlatRange range{chunk * kHostChunk, std::min(kHostChunk, numel_ - chunk * kHostChunk)};
    const FlatRange blocks{range.offset / ops::kMomentBlock,
                           (range.numel + ops::kMomentBlock - 1) / ops::kMomentBlock};
    const auto part = [](const at::Tensor& whole, const FlatRange& of) {
      return whole.defined() ? slice_of(whole, of) : whole;
    };
    const ops::AdamWRange part_of{.parameter = part(parameter_, range),
                                  .gradient = part(gradient_, range),
                                  .exp_avg = part(moment_[0], range),
                                  .exp_avg_sq = part(moment_[1], range),
                                  .low_precision = part(low_precision_, range),
                                  .exp_avg_largest = part(scales_[0], blocks),
                                  .exp_avg_sq_largest = part(scales_[1], blocks)};
    ops::adamw_update({&part_of, 1}, {}, scalars_);
  }

  const int64_t numel_;
  HostThreads& threads_;
  const at::ScalarType moments_;
  at::Tensor parameter_, gradient_, low_precision_, moment_[2], scales_[2];
  const ops::AdamWScalars scalars_{.learning_rate = at::zeros({}, at::kFloat),
                                   .step_count = at::ones({}, at::kFloat),
                                   .gradient_scale = {},
                                   .skip = {}};
};

// Copies in both directions at once, as when state streams.
class LinkTrial {
 public:
  LinkTrial(at::Device device, bool pinned, HostThreads& threads)
      : device_(device), streams_{side_stream(device), side_stream(device)} {
    for (at::Tensor& host : host_) host = host_zeros(kLinkBytes, at::kByte, pinned, threads);
    for (at::Tensor& on_device : on_device_) {
      on_device = at::zeros({kLinkBytes}, host_[0].options().device(device));
    }
    synchronize_device(device);
  }

  // Enqueues copies of kLinkBytes each way; returns before they end where memory is page-locked.
  void start(int64_t rounds) {
    rounds_ = rounds;
    for (const size_t way : {0, 1}) timers_[way].start(streams_[way]);
    for (int64_t round = 0; round < rounds; ++round) {
      for (const size_t way : {0, 1}) {
        const StreamScope scope(streams_[way]);
        at::Tensor& to = way == 0 ? on_device_[0] : host_[1];
        to.copy_(way == 0 ? host_[0] : on_device_[1], /*non_blocking=*/true);
      }
    }
    for (const size_t way : {0, 1}) timers_[way].stop(streams_[way]);
  }
  // Waits for them. Of one round.
  double seconds() {
    synchronize_device(device_);
    return std::max(timers_[0].seconds(), timers_[1].seconds()) / static_cast<double>(rounds_);
  }

 private:
  const at::Device device_;
  const std::array<c10::Stream, 2> streams_;  // to the device, to the host
  at::Tensor host_[2], on_device_[2];
  std::array<StreamTimer, 2> timers_;
  int64_t rounds_ = 1;
};

}  // namespace

StepCosts measure_step_costs(const UnitOptimizerContext& context, const OffloadConfig& offload,
                             Communicator& world, const HostShare& share) {
  const at::NoGradGuard no_grad;
  const bool is_16_bit = context.parameter_dtype != at::kFloat;
  const int64_t numel = std::clamp<int64_t>(context.expected_numel, 1, kHostNumel);
  HostThreads threads(thread_count(offload, share), share.cores);
  HostTrial host(context, numel, threads);
  // The least of some trials each, begun by all ranks together.
  std::array<double, 4> costs{};
  const auto in_trials = [&](const auto& trial) {
    for (int i = 0; i < kTrials; ++i) {
      world.barrier();
      trial(i == 0);
    }
  };
  const auto keep_least = [&](size_t which, double seconds, bool first) {
    costs[which] = first ? seconds : std::min(costs[which], seconds);
  };
  host.seconds();  // warms up
  in_trials([&](bool first) { keep_least(0, host.seconds(), first); });
  const double element = 1 / static_cast<double>(numel);
  double element_of_link = 0;
  if (!context.device.is_cpu()) {
    LinkTrial link(context.device, offload.pin_memory, threads);
    const double masters = is_16_bit || offload.what != Offload::kOptimizer ? 4 : 0;
    element_of_link = (context.state_bytes + masters) / static_cast<double>(kLinkBytes);
    link.start(1);  // warms up
    link.seconds();
    in_trials([&](bool first) {
      link.start(2);
      keep_least(1, link.seconds(), first);
    });
    if (offload.pin_memory) {
      // A little longer than the host's update.
      const auto rounds = static_cast<int64_t>(1.2 * costs[0] / std::max(costs[1], 1e-6)) + 1;
      in_trials([&](bool first) {
        link.start(std::clamp<int64_t>(rounds, 2, 64));
        keep_least(2, host.seconds(), first);
        keep_least(3, link.seconds(), first);
      });
    }
  }
  for (const size_t i : {0, 2}) costs[i] *= element;
  for (const size_t i : {1, 3}) costs[i] *= element_of_link;
  at::Tensor most = at::tensor(at::ArrayRef<double>(costs), at::kDouble).to(world.device());
  world.all_reduce(most, ReduceOp::kMax).wait();
  most = most.cpu();
  const auto* values = most.const_data_ptr<double>();
  return {values[0], values[1], values[2], values[3]};
}

OffloadStep fastest_step(const StepCosts& costs) {
  const double alone = std::min(costs.host, costs.device);
  if (costs.host_beside > 0 && costs.device_beside > 0 && costs.both() < 0.9 * alone) {
    return OffloadStep::kBoth;
  }
  return costs.device < costs.host ? OffloadStep::kDevice : OffloadStep::kHost;
}

}  // namespace tessera
