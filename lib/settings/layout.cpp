#include "lib/settings/layout.h"

#include <algorithm>

#include "lib/settings/table.h"
#include "tessera/core/error.h"

namespace tessera::programs {

at::ScalarType scalar_type_of(const std::string& dtype) {
  return dtype == "fp32" ? at::kFloat : dtype == "bf16" ? at::kBFloat16 : at::kHalf;
}

std::vector<std::string> offload_names() { return settings::find("offload")->more.choices; }

ParallelConfig parallel_config(const TrainOptions& o) {
  const std::vector<std::string> offloads = offload_names();
  const auto offload = std::find(offloads.begin(), offloads.end(), o.offload) - offloads.begin();
  const bool by_parameters = o.pipeline_balance == "parameters";
  const std::vector<std::string>& places = settings::find("offload_step")->more.choices;
  const auto place = std::find(places.begin(), places.end(), o.offload_step) - places.begin();
  ParallelConfig config{.strategy = o.strategy,
                        .bucket_bytes = o.bucket_bytes,
                        .overlap = o.overlap,
                        .reduce_at_boundary = o.reduce_at_boundary,
                        .persistence_threshold = o.persistence_threshold,
                        .prefetch_blocks = static_cast<int>(o.prefetch_blocks),
                        .unit_numel = o.fsdp_unit_numel,
                        .reshard_after_forward = o.reshard_after_forward,
                        .shard_ranks = static_cast<int>(o.shard_ranks),
                        .gradient_checkpointing = o.gradient_checkpointing,
                        .keep_activations = o.keep_activations,
                        .offload = {.what = static_cast<Offload>(offload),
                                    .step = static_cast<OffloadStep>(place),
                                    .pin_memory = o.pin_memory,
                                    .threads = static_cast<int>(o.offload_threads)},
                        .pipeline = {.schedule = o.pipeline_schedule,
                                     .chunks = static_cast<int>(o.pipeline_chunks),
                                     .shared_vocabulary = o.pipeline_vocabulary == "shared",
                                     .balance = by_parameters ? "parameters" : "flops"},
                        .sequence_parallel = o.sequence_parallel};
  config.precision.parameter = scalar_type_of(o.dtype);
  if (!o.gradient_dtype.empty()) config.precision.gradient = scalar_type_of(o.gradient_dtype);
  if (!o.reduce_dtype.empty()) config.precision.reduce = scalar_type_of(o.reduce_dtype);
  return config;
}

MeshExtents mesh_extents(const TrainOptions& o, int world_size) {
  const int64_t data = world_size / (o.pipeline_parallel * o.tensor_parallel);
  return {.pipeline = static_cast<int>(o.pipeline_parallel),
          .data = static_cast<int>(std::max<int64_t>(1, data)),
          .tensor = static_cast<int>(o.tensor_parallel)};
}

void check_axes(const TrainOptions& o, int64_t world_size) {
  const int64_t together = o.pipeline_parallel * o.tensor_parallel;
  check(world_size % together == 0, ErrorCode::kInvalidArgument, "--pipeline_parallel ",
        o.pipeline_parallel, " x --tensor_parallel ", o.tensor_parallel, " take ", together,
        " ranks or a multiple of it, and the job has ", world_size, "; start ",
        (world_size / together + 1) * together,
        " (mpirun -n, or --ranks on the CPU) or lower them");
}

}  // namespace tessera::programs
