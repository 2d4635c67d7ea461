// SPDX-License-Identifier: MIT
#include "lib/plan/optimizer_state.h"

#include <algorithm>
#include <array>
#include <vector>

#include "backends/common/state_blocks.h"

namespace tessera {
namespace {

struct KeptRun {
  int64_t numel = 0;
  bool small = false;
};

std::vector<KeptRun> kept_runs(const PlannedUnit& unit, int rank, bool matrices = false) {
  std::vector<KeptRun> runs;
  if (unit.frozen || unit.matrices != matrices) return runs;
  for (size_t segment = 0; segment < unit.layout.segments().size(); ++segment) {
    for (const OwnedRun& run : unit.layout.owned_runs(segment, rank)) {
      if (runs.empty() || runs.back().small != run.small) runs.push_back({.small = run.small});
      runs.back().numel += run.range.numel;
    }
  }
  return runs;
}

// All own the same where everything is kept alike.
int differing_ranks(const LayoutPlan& plan, const Stage& stage) {
  if (plan.moments.rules == StateRules{} || stage.units.empty()) return 1;
  return stage.units.front().layout.shards();
}

}  // namespace

StateBytes state_bytes(const LayoutPlan& plan, const Stage& stage) {
  StateBytes bytes;
  const int ranks = differing_ranks(plan, stage);
  for (int rank = 0; rank < ranks; ++rank) {
    double own = 0;
    for (const PlannedUnit& unit : stage.units) {
      for (const KeptRun& run : kept_runs(unit, rank)) {
        own += static_cast<double>(run.numel) * plan.moments.bytes_of(run.small);
      }
    }
    bytes.most = std::max(bytes.most, own);
    bytes.all += own;
  }
  if (!stage.units.empty()) bytes.all *= stage.units.front().layout.shards() / ranks;
  return bytes;
}

StateChunks state_chunks(const LayoutPlan& plan, const Stage& stage, bool matrices) {
  const int64_t block = plan.moments.rules.block;
  const int64_t most = (plan.parallel.offload.chunk_numel + block - 1) / block * block;
  StateChunks largest;
  const int ranks = differing_ranks(plan, stage);
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int64_t, 2> numel{};  // of others, of small parameters
    for (const PlannedUnit& unit : stage.units) {
      for (const KeptRun& run : kept_runs(unit, rank, matrices)) {
        int64_t& of_kind = numel[run.small ? 1 : 0];
        of_kind = std::max(of_kind, std::min(most, run.numel));
      }
    }
    double bytes = 0;
    for (const bool small : {false, true}) {
      if (matrices) break;
      bytes += static_cast<double>(numel[small ? 1 : 0]) * plan.moments.bytes_of(small);
    }
    const auto of_both = static_cast<double>(std::max(numel[0], numel[1]));
    largest = {std::max(largest.numel, of_both), std::max(largest.bytes, bytes)};
  }
  return largest;
}

void require_state_blocks(const LayoutPlan& plan) {
  const StateRules& rules = plan.moments.rules;
  if (rules.block == 1) return;
  BlockCounts counts;
  const ModelShapes shapes = shapes_of(plan);
  for (const auto& block : shapes.blocks) {
    for (const ParameterShape& shape : block) {
      const Parameter& parameter = shape.parameter;
      if (parameter.placement.frozen || parameter.rule.whole_matrix) continue;
      const FlatLayout alone({parameter}, 1, ShardGranularity::kFlat, 0, rules);
      counts.add(shape.owner, alone.entries().front(), rules);
    }
  }
  counts.require(rules);
}

}  // namespace tessera
