// The only place that states which combinations of strategies are legal and how they nest:
// TensorParallel(GPipe(ShardingStrategy with its optimizer on the device or the host)).
#include <array>

#include "tessera/backends/check_config.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/backends/fsdp/fsdp.h"
#include "tessera/backends/offload/cpu_offload.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/pipeline/gpipe.h"
#include "tessera/backends/tensor/tensor_parallel.h"
#include "tessera/backends/zero/zero_stage1.h"
#include "tessera/backends/zero/zero_stage2.h"
#include "tessera/backends/zero/zero_stage3.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Sharding = std::unique_ptr<ShardingStrategy>;

template <typename S>
Sharding make(const ParallelConfig& config, Communicator& data) {
  return std::make_unique<S>(config, data);
}

// One row per name; a reason says why the combination is refused, empty that it is legal. Pipeline
// and tensor parallelism go around any of them.
struct Row {
  const char* name;
  Sharding (*make)(const ParallelConfig&, Communicator&);
  const char* several_data_ranks;
  const char* offload_optimizer;
  const char* offload_parameters;
};

constexpr const char* kKeepsParameters =
    "it keeps whole parameters on the device; use zero3 or fsdp, or offload only the optimizer";

constexpr std::array<Row, 6> kTable = {{
    {"single", make<Ddp>, "it runs on one rank; use ddp, zero1, zero2, zero3 or fsdp", "",
     kKeepsParameters},
    {"ddp", make<Ddp>, "", "every rank would step the whole model on its host; use zero1",
     kKeepsParameters},
    {"zero1", make<ZeroStage1>, "", "", kKeepsParameters},
    {"zero2", make<ZeroStage2>, "", "", kKeepsParameters},
    {"zero3", make<ZeroStage3>, "", "", ""},
    {"fsdp", make<Fsdp>, "", "", ""},
}};

const Row& row_of(const std::string& name) {
  std::string known;
  for (const Row& row : kTable) {
    if (name == row.name) return row;
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  fail(ErrorCode::kInvalidArgument, "strategy \"", name, "\" is unknown; use one of ", known);
}

}  // namespace

void check_config(const ParallelConfig& config, const MeshExtents& mesh) {
  const Row& row = row_of(config.strategy);
  auto require = [&](bool legal, const auto&... text) {
    check(legal, ErrorCode::kInvalidArgument, text...);
  };
  auto allow = [&](bool asked, const char* what, const char* reason) {
    require(!asked || *reason == '\0', "strategy ", row.name, " ", what, ": ", reason);
  };
  const int ranks = mesh.data;
  allow(ranks > 1, concat("on a data axis of ", ranks, " ranks").c_str(), row.several_data_ranks);
  allow(config.offload.what == Offload::kOptimizer, "with an offloaded optimizer",
        row.offload_optimizer);
  allow(config.offload.what == Offload::kOptimizerAndParameters, "with offloaded parameters",
        row.offload_parameters);
  require(config.prefetch_blocks >= 0, "prefetch_blocks is ", config.prefetch_blocks,
          "; it must not be negative");
  require(config.bucket_bytes > 0, "bucket_bytes is ", config.bucket_bytes,
          "; it must be positive");
  require(config.unit_numel >= 0, "unit_numel is ", config.unit_numel, "; it must not be negative");
  const bool fsdp = std::string(row.name) == "fsdp";
  require(
      fsdp || (config.unit_numel == 0 && config.reshard_after_forward && config.shard_ranks == 0),
      "unit_numel, reshard_after_forward and shard_ranks belong to fsdp; strategy ", row.name,
      " has no such choice");
  require(config.shard_ranks != 1 || ranks == 1 ||
              config.offload.what != Offload::kOptimizerAndParameters,
          "shard_ranks 1 with offloaded parameters: nothing is sharded, and every rank keeps whole "
          "parameters on the device; offload only the optimizer");
  require(mesh.tensor > 1 || !config.sequence_parallel,
          "sequence_parallel needs a tensor axis of more than one rank");
  const int stages = mesh.pipeline;
  require(stages > 1 || config.pipeline.chunks == 1, "pipeline.chunks is ", config.pipeline.chunks,
          "; it needs a pipeline axis of more than one rank");
  const bool shared = config.pipeline.shared_vocabulary;
  require(stages > 1 || !shared,
          "pipeline.shared_vocabulary needs a pipeline axis of more than one rank");
  require(mesh.tensor == 1 || !shared, "pipeline.shared_vocabulary on a tensor axis of ",
          mesh.tensor, " ranks: that axis cuts the vocabulary already");
  if (stages > 1) {
    make_schedule(config.pipeline.schedule, stages, 1, config.pipeline.chunks, shared);
  }
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Row& row : kTable) names.emplace_back(row.name);
  return names;
}

std::unique_ptr<Strategy> make_strategy(const ParallelConfig& config, const DeviceMesh& mesh) {
  const Row& row = row_of(config.strategy);
  check_config(config, {.pipeline = mesh.extent(Axis::kPipeline),
                        .data = mesh.extent(Axis::kData),
                        .tensor = mesh.extent(Axis::kTensor)});
  Sharding sharding = row.make(config, mesh.axis(Axis::kData));
  sharding->set_mesh(mesh);
  if (config.offload.what != Offload::kNone) {
    sharding->place_optimizer(make_cpu_offload(config, mesh.world()));
  }
  std::unique_ptr<Strategy> strategy;
  if (mesh.extent(Axis::kPipeline) > 1) {
    strategy = std::make_unique<GPipe>(config, std::move(sharding), mesh.axis(Axis::kPipeline));
  } else {
    strategy = std::move(sharding);
  }
  if (mesh.extent(Axis::kTensor) == 1) return strategy;
  return std::make_unique<TensorParallel>(
      std::move(strategy), mesh.axis(Axis::kTensor),
      TensorParallelOptions{.sequence_parallel = config.sequence_parallel});
}

}  // namespace tessera
