// SPDX-License-Identifier: MIT
#include "tessera/backends/offload/cpu_offload.h"

#include <algorithm>
#include <array>

#include "backends/offload/both_steps.h"
#include "backends/offload/device_share.h"
#include "backends/offload/host_step.h"
#include "backends/offload/step_choice.h"
#include "backends/offload/streamed_step.h"
#include "lib/core/meta.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

// Place of the update, and both sides' costs beside each other.
struct Choice {
  OffloadStep step;
  std::array<double, 2> costs{1, 1};
};

Choice choose_step(const OffloadConfig& offload, const UnitOptimizerContext& context,
                   Communicator& world, const HostShare& share) {
  const OffloadStep asked = offload.step;
  if (asked == OffloadStep::kHost || asked == OffloadStep::kDevice) return {asked};
  if (!is_gpu(context.device)) {
    return {asked == OffloadStep::kBoth ? OffloadStep::kBoth : OffloadStep::kHost};
  }
  if (context.device.is_meta()) return {OffloadStep::kBoth};  // which needs all kinds of memory
  const StepCosts costs = measure_step_costs(context, offload, world, share);
  const OffloadStep step = asked == OffloadStep::kBoth ? asked : fastest_step(costs);
  if (world.rank() == 0) {
    const char* const place = step == OffloadStep::kBoth     ? "both at once"
                              : step == OffloadStep::kDevice ? "the GPU"
                                                             : "the host's cores";
    const auto ns = [](double alone, double beside) {
      return beside > 0 ? concat(alone * 1e9, " (", beside * 1e9, " beside the other)")
                        : concat(alone * 1e9);
    };
    log(LogLevel::kInfo, "offload: the update runs on ", place,
        "; ns a parameter: ", ns(costs.host, costs.host_beside), " on the host (",
        thread_count(offload, share), " threads), ", ns(costs.device, costs.device_beside),
        " for state over the link");
  }
  if (costs.host_beside > 0 && costs.device_beside > 0) {
    return {step, {costs.host_beside, costs.device_beside}};
  }
  return {step, {std::max(costs.host, 1e-12), std::max(costs.device, 1e-12)}};
}

}  // namespace

UnitOptimizerFactory make_cpu_offload(const ParallelConfig& config, Communicator& world) {
  check(config.offload.threads >= 0, ErrorCode::kInvalidArgument, "offload threads is ",
        config.offload.threads, "; it must not be negative");
  check(config.offload.chunk_numel > 0, ErrorCode::kInvalidArgument, "offload chunk_numel is ",
        config.offload.chunk_numel, "; it must be positive");
  const HostShare share = find_host_share(world);
  check(config.offload.device_bytes >= 0, ErrorCode::kInvalidArgument, "offload device_bytes is ",
        config.offload.device_bytes, "; it must not be negative");
  const UnitOptimizerFactory offloaded =
      [config, share,
       &world](const UnitOptimizerContext& context) -> std::unique_ptr<UnitOptimizer> {
    const Choice choice = choose_step(config.offload, context, world, share);
    switch (choice.step) {
      case OffloadStep::kBoth:
        return std::make_unique<BothSteps>(context, config, world, share, choice.costs);
      case OffloadStep::kDevice:
        return std::make_unique<StreamedStep>(context, config, world, share);
      default:
        return std::make_unique<HostStep>(context, config, world, share);
    }
  };
  if (!config.offload.shares_device()) return offloaded;
  return [offloaded, room = std::make_shared<DeviceStateBudget>(config.offload.device_bytes)](
             const UnitOptimizerContext& context) -> std::unique_ptr<UnitOptimizer> {
    return std::make_unique<DeviceShare>(context, offloaded, room);
  };
}

}  // namespace tessera
