#include "tessera/backends/offload/cpu_offload.h"

#include "backends/offload/host_step.h"

namespace tessera {

UnitOptimizerFactory make_cpu_offload(const ParallelConfig& config, Communicator& world) {
  const HostShare share = find_host_share(world);
  return [config, share, &world](const UnitOptimizerContext& context) {
    return std::make_unique<HostStep>(context, config, world, share);
  };
}

}  // namespace tessera
