#include "tessera/backends/offload/cpu_offload.h"

#include "backends/offload/host_step.h"
#include "backends/offload/streamed_step.h"
#include "tessera/core/error.h"

namespace tessera {

UnitOptimizerFactory make_cpu_offload(const ParallelConfig& config, Communicator& world) {
  check(config.offload.threads >= 0, ErrorCode::kInvalidArgument, "offload threads is ",
        config.offload.threads, "; it must not be negative");
  check(config.offload.chunk_numel > 0, ErrorCode::kInvalidArgument, "offload chunk_numel is ",
        config.offload.chunk_numel, "; it must be positive");
  const HostShare share = find_host_share(world);
  return [config, share,
          &world](const UnitOptimizerContext& context) -> std::unique_ptr<UnitOptimizer> {
    const OffloadStep step = config.offload.step;
    if (step == OffloadStep::kDevice || (step == OffloadStep::kAuto && !context.device.is_cpu())) {
      return std::make_unique<StreamedStep>(context, config, world, share);
    }
    return std::make_unique<HostStep>(context, config, world, share);
  };
}

}  // namespace tessera
