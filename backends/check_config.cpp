// The only place that states which configurations are legal.
#include "backends/check_config.h"

#include "backends/strategy_rows.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// "zero2 and fsdp"
std::string strategies_with(std::string_view setting) {
  std::string names;
  for (const StrategyRow& row : strategy_rows()) {
    if (row.has(setting)) names += concat(names.empty() ? "" : " and ", row.name);
  }
  return names;
}

}  // namespace

ShardingRules sharding_rules(const ParallelConfig& config, const MeshExtents& mesh) {
  return strategy_row(config.strategy).rules(config, mesh.data);
}

bool has_setting(const std::string& strategy, std::string_view setting) {
  return strategy_row(strategy).has(setting);
}

bool is_legal(const ParallelConfig& config, const MeshExtents& mesh) {
  try {
    check_config(config, mesh);
  } catch (const Error& error) {
    return false;
  }
  return true;
}

std::vector<IdleSetting> idle_settings(const ParallelConfig& config, const MeshExtents& mesh) {
  std::vector<IdleSetting> idle;
  const auto add = [&](bool changed, bool read, const char* name, const std::string& why,
                       bool refused = false) {
    if (changed && !read) idle.push_back({name, why, refused});
  };
  constexpr bool kRefused = true;
  const ParallelConfig usual;
  const std::string& strategy = config.strategy;
  const StrategyRow& row = strategy_row(strategy);
  const bool converts = config.precision.reduce_dtype() != config.precision.gradient_dtype();
  add(config.bucket_bytes != usual.bucket_bytes,
      !sharding_rules(config, mesh).shards_gradients || converts, "bucket_bytes",
      concat("strategy ", strategy, " reduces block by block where gradients travel as they are"));
  const auto add_own = [&](bool changed, const char* name, bool refused) {
    add(changed, row.has(name), name,
        concat("it belongs to ", strategies_with(name), "; strategy ", strategy,
               " has no such choice"),
        refused);
  };
  add_own(config.reduce_at_boundary, "reduce_at_boundary", false);
  add_own(config.persistence_threshold != usual.persistence_threshold, "persistence_threshold",
          false);
  add_own(config.prefetch_blocks != usual.prefetch_blocks, "prefetch_blocks", false);
  add_own(config.unit_numel != 0, "unit_numel", kRefused);
  add_own(!config.reshard_after_forward, "reshard_after_forward", kRefused);
  add_own(config.shard_ranks != 0, "shard_ranks", kRefused);
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
  const StrategyRow& row = strategy_row(config.strategy);
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

}  // namespace tessera
