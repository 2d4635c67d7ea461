// SPDX-License-Identifier: MIT
#include "backends/offload/step_choice.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "lib/core/clock.h"
#include "lib/core/host_memory.h"
#include "lib/ops/update.h"
#include "tessera/core/device.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {
namespace {

// More than a host's caches hold, so that memory is measured.
constexpr int64_t kHostNumel = int64_t{1} << 25;
constexpr int64_t kLinkBytes = int64_t{64} << 20;

// Time of the second of two calls: the first one warms up.
template <typename Fn>
double seconds_of(const Fn& fn) {
  fn();
  const double begin = now_s();
  fn();
  return now_s() - begin;
}

double update_seconds(int64_t numel, at::ScalarType dtype, HostThreads& threads) {
  std::vector<at::Tensor> fp32;
  for (int i = 0; i < 3; ++i) fp32.push_back(host_zeros(numel, at::kFloat, false, threads));
  const at::Tensor gradient = host_zeros(numel, dtype, false, threads);
  const at::Tensor low_precision = dtype == at::kFloat ? at::Tensor() : gradient;
  const ops::AdamWScalars scalars{.learning_rate = at::zeros({}, at::kFloat),
                                  .step_count = at::ones({}, at::kFloat)};
  const auto update = [&](int64_t chunk) {
    const FlatRange range{chunk * kHostChunk, std::min(kHostChunk, numel - chunk * kHostChunk)};
    const auto part = [&](const at::Tensor& whole) {
      return whole.defined() ? slice_of(whole, range) : whole;
    };
    const ops::AdamWRange part_of{part(fp32[0]), part(gradient), part(fp32[1]), part(fp32[2]),
                                  part(low_precision)};
    ops::adamw_update({&part_of, 1}, {}, scalars);
  };
  return seconds_of([&] { threads.run((numel + kHostChunk - 1) / kHostChunk, update); });
}

// Both directions at once, as when state streams.
double link_seconds(at::Device device, bool pinned, HostThreads& threads) {
  const auto on_host = [&] { return host_zeros(kLinkBytes, at::kByte, pinned, threads); };
  const at::Tensor source = on_host(), target = on_host();
  const at::Tensor loaded = at::empty({kLinkBytes}, source.options().device(device));
  const at::Tensor stored = at::zeros_like(loaded);
  const c10::Stream load = side_stream(device), store = side_stream(device);
  synchronize_device(device);
  return seconds_of([&] {
    {
      const StreamScope scope(load);
      at::Tensor(loaded).copy_(source, /*non_blocking=*/true);
    }
    {
      const StreamScope scope(store);
      at::Tensor(target).copy_(stored, /*non_blocking=*/true);
    }
    synchronize_device(device);
  });
}

}  // namespace

StepCosts measure_step_costs(const UnitOptimizerContext& context, const OffloadConfig& offload,
                             Communicator& world, const HostShare& share) {
  const at::NoGradGuard no_grad;
  const bool is_16_bit = context.parameter_dtype != at::kFloat;
  const int64_t numel = std::clamp<int64_t>(context.expected_numel, 1, kHostNumel);
  HostThreads threads(thread_count(offload, share), share.cores);
  at::Tensor costs = at::zeros({2}, at::kDouble);
  world.barrier();
  costs[0] = update_seconds(numel, context.parameter_dtype, threads) / static_cast<double>(numel);
  if (!context.device.is_cpu()) {
    world.barrier();
    const double masters = is_16_bit || offload.what != Offload::kOptimizer ? 4 : 0;
    costs[1] = link_seconds(context.device, offload.pin_memory, threads) *
               (context.state_bytes + masters) / static_cast<double>(kLinkBytes);
  }
  costs = costs.to(world.device());
  world.all_reduce(costs, ReduceOp::kMax).wait();
  costs = costs.cpu();
  return {costs[0].item<double>(), costs[1].item<double>()};
}

}  // namespace tessera
