// SPDX-License-Identifier: MIT
#include "lib/settings/layout.h"

#include <algorithm>

#include "backends/strategy_kinds.h"
#include "lib/settings/memory_size.h"
#include "tessera/core/error.h"

namespace tessera::programs {

std::string plain_strategy(int64_t ranks) {
  return name_of(ranks > 1 ? StrategyKind::kDdp : StrategyKind::kSingle);
}

void choose_strategy(const FlagSet& flags, int64_t world_size, TrainOptions& options) {
  const bool given = flags.given("strategy");
  if (world_size > 1 && !given) options.parallel.strategy = plain_strategy(world_size);
}

ParallelConfig parallel_config(const TrainOptions& o) {
  ParallelConfig config = o.parallel;
  if (o.axes.balance == StageBalance::kParameters) {
    config.pipeline.balance = name_of(StageBalance::kParameters);
  }
  if (const auto gpu = parse_offload_gpu_memory(o.memory.offload_gpu); gpu && !gpu->automatic) {
    config.offload.device_bytes = static_cast<int64_t>(gpu->bytes);
  }
  return config;
}

MeshExtents mesh_extents(const TrainOptions& o, int world_size) {
  const int64_t data = world_size / o.axes.sharers();
  return {.pipeline = static_cast<int>(o.axes.pipeline),
          .data = static_cast<int>(std::max<int64_t>(1, data)),
          .tensor = static_cast<int>(o.axes.tensor),
          .context = static_cast<int>(o.axes.context),
          .expert = static_cast<int>(o.axes.expert)};
}

void check_axes(const TrainOptions& o, int64_t world_size) {
  const int64_t together = o.axes.sharers();
  check(
      world_size % together == 0, ErrorCode::kInvalidArgument, "--pipeline_parallel ",
      o.axes.pipeline, o.axes.context == 1 ? "" : concat(" x --context_parallel ", o.axes.context),
      " x --tensor_parallel ", o.axes.tensor, " take ", together,
      " ranks or a multiple of it, and the job has ", world_size, "; start ",
      (world_size / together + 1) * together, " (mpirun -n, or --ranks on the CPU) or lower them");
  const int64_t data = world_size / together;
  check(data % o.axes.expert == 0, ErrorCode::kInvalidArgument, "--expert_parallel ", o.axes.expert,
        " must divide the ", data, " data ranks, to whose neighbours it gives the experts");
}

}  // namespace tessera::programs
