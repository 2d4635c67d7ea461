// SPDX-License-Identifier: MIT
#include "tessera/backends/offload/cpu_offload.h"

#include "backends/offload/device_share.h"
#include "backends/offload/host_step.h"
#include "backends/offload/step_choice.h"
#include "backends/offload/streamed_step.h"
#include "lib/core/meta.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

bool on_device(const OffloadConfig& offload, const UnitOptimizerContext& context,
               Communicator& world, const HostShare& share) {
  if (offload.step != OffloadStep::kAuto) return offload.step == OffloadStep::kDevice;
  if (!is_gpu(context.device)) return false;
  if (context.device.is_meta()) return true;  // which needs more device memory
  const StepCosts costs = measure_step_costs(context, offload, world, share);
  const bool streams = costs.device < costs.host;
  if (world.rank() == 0) {
    log(LogLevel::kInfo, "offload: the update runs on ", streams ? "the GPU" : "the host's cores",
        "; ns a parameter: ", costs.host * 1e9, " there (", thread_count(offload, share),
        " threads), ", costs.device * 1e9, " for state over the link");
  }
  return streams;
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
    if (on_device(config.offload, context, world, share)) {
      return std::make_unique<StreamedStep>(context, config, world, share);
    }
    return std::make_unique<HostStep>(context, config, world, share);
  };
  if (!config.offload.shares_device()) return offloaded;
  return [offloaded, room = std::make_shared<DeviceStateBudget>(config.offload.device_bytes)](
             const UnitOptimizerContext& context) -> std::unique_ptr<UnitOptimizer> {
    return std::make_unique<DeviceShare>(context, offloaded, room);
  };
}

}  // namespace tessera
