// SPDX-License-Identifier: MIT
// Legality of configurations, stated only here.
#include "backends/check_config.h"

#include <algorithm>

#include "backends/layout_fields.h"
#include "backends/strategy_rows.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void require_expert_axis(const ParallelConfig& config, const MeshExtents& mesh) {
  if (mesh.expert == 1) return;
  const auto require = [&](bool legal, const auto&... text) {
    check(legal, ErrorCode::kInvalidArgument, "an expert axis of ", mesh.expert, " ranks ",
          text...);
  };
  require(mesh.expert > 1 && mesh.data % mesh.expert == 0, "must divide the data axis of ",
          mesh.data, " ranks");
  require(mesh.tensor == 1, "beside a tensor axis of ", mesh.tensor,
          " ranks is not built: both divide the experts. Leave one of them at 1 "
          "(--expert_parallel, --tensor_parallel)");
  require(mesh.context == 1, "beside a context axis of ", mesh.context,
          " ranks is not built; leave one of them at 1 (--expert_parallel, --context_parallel)");
  require(config.offload.what == Offload::kNone && !config.offload.activations, "with --offload ",
          offload_name(config),
          " is not built; leave out --offload, or the expert axis at 1 (--expert_parallel 1)");
  const int shards = config.shard_ranks;
  require(shards <= 1 || shards == mesh.data, "with shard_ranks ", shards,
          " is not built: owners of experts and replicas of the model would cross. Leave "
          "shard_ranks at 0, or the expert axis at 1 (--expert_parallel 1)");
}

}  // namespace

ShardingRules sharding_rules(const ParallelConfig& config, const MeshExtents& mesh) {
  return strategy_row(config.strategy).rules(config, mesh.sharding());
}

bool has_setting(const std::string& strategy, std::string_view setting) {
  const auto named = [&](const LayoutField& field) { return field.member() == setting; };
  const auto field = std::ranges::find_if(layout_fields(), named);
  return field != layout_fields().end() && field->is_of(strategy);
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
  const ParallelConfig usual;
  for (const LayoutField& field : layout_fields()) {
    if (field.text(config) == field.text(usual)) continue;
    if (std::string why = field.why_idle(config, mesh); !why.empty()) {
      idle.push_back({field.name, field.member(), std::move(why), field.more.refused});
    }
  }
  return idle;
}

void check_config(const ParallelConfig& config, const MeshExtents& mesh) {
  const StrategyRow& row = strategy_row(config.strategy);
  auto require = [&](bool legal, const auto&... text) {
    check(legal, ErrorCode::kInvalidArgument, text...);
  };
  auto allow = [&](bool asked, const char* what, const char* reason) {
    require(!asked || *reason == '\0', "strategy ", config.strategy, " ", what, ": ", reason);
  };
  const int ranks = mesh.sharding();
  const bool shares_rows = mesh.context > 1;
  const char* const on = shares_rows ? "on data x context axes of " : "on a data axis of ";
  allow(ranks > 1, concat(on, ranks, " ranks").c_str(), row.several_data_ranks);
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
          config.strategy, ": shard_ranks is ", config.shard_ranks,
          shares_rows ? "; it must divide the data x context axes of "
                      : "; it must divide the data axis of ",
          ranks, " ranks");
  require(config.shard_ranks != 1 || ranks == 1 ||
              config.offload.what != Offload::kOptimizerAndParameters,
          "shard_ranks 1 with offloaded parameters: nothing is sharded, and every rank keeps whole "
          "parameters on the device; offload only the optimizer");
  require(config.precision.fp8 == Fp8::kOff || !shares_rows, "fp8 on a context axis of ",
          mesh.context,
          " ranks is not built: they would have to agree on scales of matrices whose rows they "
          "share; leave fp8 off (--fp8 off) or the context axis at 1");
  require(
      config.precision.fp8 != Fp8::kAuto,
      "fp8 is auto, which a strategy cannot measure: its micro-batches are not known. Take what "
      "measure_fp8_layers() returns, or say tensorwise, rowwise or off");
  require(fp8_layers_of(config.precision.fp8_layers).any(),
          "fp8_layers is none: no product is in 8 bits; leave fp8 off (--fp8 off)");
  require_expert_axis(config, mesh);
  const std::vector<int64_t>& again = config.recomputed_blocks;
  require(again.empty() || (again.front() >= 0 && std::ranges::is_sorted(again, std::less_equal())),
          "recomputed_blocks must be places of blocks in increasing order, each once");
  const int stages = mesh.pipeline;
  const bool shared = config.pipeline.shared_vocabulary;
  require(mesh.tensor == 1 || !shared, "pipeline.shared_vocabulary on a tensor axis of ",
          mesh.tensor, " ranks: that axis cuts the vocabulary already");
  if (stages > 1) {
    make_schedule(config.pipeline.schedule, stages, 1, config.pipeline.chunks, shared);
  }
}

}  // namespace tessera
