// SPDX-License-Identifier: MIT
// Nesting of strategies: Pipeline(ShardingStrategy with an optimizer on the device or the host),
// for a model perhaps transformed by TensorParallel.
#include "backends/check_config.h"
#include "backends/expert_parallel.h"
#include "backends/strategy_rows.h"
#include "tessera/backends/offload/cpu_offload.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/backends/tensor/tensor_parallel.h"
#include "tessera/core/log.h"

namespace tessera {

std::unique_ptr<Strategy> make_strategy(const ParallelConfig& config, const DeviceMesh& mesh) {
  const MeshExtents extents{.pipeline = mesh.extent(Axis::kPipeline),
                            .data = mesh.extent(Axis::kData),
                            .tensor = mesh.extent(Axis::kTensor),
                            .context = mesh.extent(Axis::kContext),
                            .expert = mesh.extent(Axis::kExpert)};
  check_config(config, extents);
  for (const IdleSetting& idle : idle_settings(config, extents)) {
    if (mesh.world().rank() != 0 || mesh.world().device().is_meta()) break;
    log(LogLevel::kWarning, idle.name, " has no effect: ", idle.why);
  }
  ModelTransform transform;
  if (extents.tensor > 1) {
    transform =
        TensorParallel(mesh.axis(Axis::kTensor), {.sequence_parallel = config.sequence_parallel});
  }
  if (extents.expert > 1) {  // beside no tensor axis
    transform = [axis = &mesh.axis(Axis::kExpert)](const ModelSpec& model) {
      return on_expert_axis(model, *axis);
    };
  }
  ShardingSetup setup(mesh.sharding());
  setup.mesh = &mesh;
  if (config.offload.what != Offload::kNone) {
    setup.placement = make_cpu_offload(config, mesh.world());
  }
  const StrategyRow& row = strategy_row(config.strategy);
  if (extents.pipeline == 1) {
    setup.transform = transform;
    return row.make(config, setup);
  }
  ParallelConfig of_stage = config;
  of_stage.recomputed_blocks.clear();  // the pipeline marks them, as they are indices in its model
  return std::make_unique<Pipeline>(config, row.make(of_stage, setup), mesh.axis(Axis::kPipeline),
                                    transform);
}

}  // namespace tessera
