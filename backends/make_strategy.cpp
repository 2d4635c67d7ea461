// The only place that states which combinations of strategies are legal and how they nest:
// Pipeline(ShardingStrategy with its optimizer on the device or the host), of a model that
// TensorParallel may have changed.
#include <array>

#include "tessera/backends/check_config.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/backends/fsdp/fsdp.h"
#include "tessera/backends/offload/cpu_offload.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/backends/tensor/tensor_parallel.h"
#include "tessera/backends/zero/zero_stage1.h"
#include "tessera/backends/zero/zero_stage2.h"
#include "tessera/backends/zero/zero_stage3.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

using Sharding = std::unique_ptr<ShardingStrategy>;

template <typename S>
Sharding make(const ParallelConfig& config, const ShardingSetup& setup) {
  return std::make_unique<S>(config, setup);
}

// One row per name; a reason says why the combination is refused, empty that it is legal. Pipeline
// and tensor parallelism go around any of them.
struct Row {
  const char* name;
  Sharding (*make)(const ParallelConfig&, const ShardingSetup&);
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

MeshExtents extents_of(const DeviceMesh& mesh) {
  return {.pipeline = mesh.extent(Axis::kPipeline),
          .data = mesh.extent(Axis::kData),
          .tensor = mesh.extent(Axis::kTensor)};
}

void warn_of_idle(const ParallelConfig& config, const DeviceMesh& mesh) {
  if (mesh.world().rank() != 0) return;
  for (const IdleSetting& idle : idle_settings(config, extents_of(mesh))) {
    log(LogLevel::kWarning, idle.name, " has no effect: ", idle.why);
  }
}

}  // namespace

std::vector<IdleSetting> idle_settings(const ParallelConfig& config, const MeshExtents& mesh) {
  std::vector<IdleSetting> idle;
  const auto add = [&](bool changed, bool read, const char* name, const std::string& why,
                       bool refused = false) {
    if (changed && !read) idle.push_back({name, why, refused});
  };
  constexpr bool kRefused = true;
  const ParallelConfig usual;
  const std::string& strategy = config.strategy;
  const bool fsdp = strategy == "fsdp", zero3 = strategy == "zero3";
  const auto of = [&](const char* others) {
    return concat("it belongs to ", others, "; strategy ", strategy, " has no such choice");
  };
  const bool sharded = zero3 || ((fsdp || strategy == "zero2") && !config.reduce_at_boundary);
  const bool converts = config.precision.reduce_dtype() != config.precision.gradient_dtype();
  add(config.bucket_bytes != usual.bucket_bytes,
      !sharded || converts || (fsdp && config.shard_ranks == 1), "bucket_bytes",
      concat("strategy ", strategy, " reduces block by block where gradients travel as they are"));
  add(config.reduce_at_boundary, fsdp || strategy == "zero2", "reduce_at_boundary",
      of("zero2 and fsdp"));
  add(config.persistence_threshold != usual.persistence_threshold, zero3, "persistence_threshold",
      of("zero3"));
  add(config.prefetch_blocks != usual.prefetch_blocks, zero3 || fsdp, "prefetch_blocks",
      of("zero3 and fsdp"));
  add(config.unit_numel != 0, fsdp, "unit_numel", of("fsdp"), kRefused);
  add(!config.reshard_after_forward, fsdp, "reshard_after_forward", of("fsdp"), kRefused);
  add(config.shard_ranks != 0, fsdp, "shard_ranks", of("fsdp"), kRefused);
  add(config.keep_activations, !config.gradient_checkpointing, "keep_activations",
      "gradient_checkpointing runs whole blocks again");
  const bool offloads = config.offload.what != Offload::kNone;
  const char* const nothing = "nothing is offloaded";
  add(config.offload.step != usual.offload.step, offloads, "offload.step", nothing);
  add(config.offload.pin_memory != usual.offload.pin_memory, offloads, "offload.pin_memory",
      nothing);
  add(config.offload.threads != usual.offload.threads, offloads, "offload.threads", nothing);
  const bool stages = mesh.pipeline > 1;
  const char* const pipeline = "it needs a pipeline axis of more than one rank";
  add(config.pipeline.schedule != usual.pipeline.schedule, stages, "pipeline.schedule", pipeline);
  add(config.pipeline.chunks != 1, stages, "pipeline.chunks", pipeline, kRefused);
  add(config.pipeline.shared_vocabulary, stages, "pipeline.shared_vocabulary", pipeline, kRefused);
  add(config.pipeline.balance != usual.pipeline.balance, stages, "pipeline.balance", pipeline);
  add(config.sequence_parallel, mesh.tensor > 1, "sequence_parallel",
      "it needs a tensor axis of more than one rank", kRefused);
  return idle;
}

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
  for (const IdleSetting& idle : idle_settings(config, mesh)) {
    require(!idle.refused, idle.name, " has no effect: ", idle.why);
  }
  require(config.shard_ranks == 0 || (config.shard_ranks > 0 && ranks % config.shard_ranks == 0),
          row.name, ": shard_ranks is ", config.shard_ranks, "; it must divide the data axis of ",
          ranks, " ranks");
  require(config.shard_ranks != 1 || ranks == 1 ||
              config.offload.what != Offload::kOptimizerAndParameters,
          "shard_ranks 1 with offloaded parameters: nothing is sharded, and every rank keeps whole "
          "parameters on the device; offload only the optimizer");
  const int stages = mesh.pipeline;
  const bool shared = config.pipeline.shared_vocabulary;
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
  check_config(config, extents_of(mesh));
  warn_of_idle(config, mesh);
  const bool stages = mesh.extent(Axis::kPipeline) > 1;
  ModelTransform transform;
  if (mesh.extent(Axis::kTensor) > 1) {
    transform =
        TensorParallel(mesh.axis(Axis::kTensor), {.sequence_parallel = config.sequence_parallel});
  }
  ShardingSetup setup{.data = mesh.axis(Axis::kData), .mesh = &mesh};
  if (config.offload.what != Offload::kNone) {
    setup.placement = make_cpu_offload(config, mesh.world());
  }
  if (!stages) setup.transform = transform;
  Sharding sharding = row.make(config, setup);
  if (!stages) return sharding;
  return std::make_unique<Pipeline>(config, std::move(sharding), mesh.axis(Axis::kPipeline),
                                    transform);
}

}  // namespace tessera
