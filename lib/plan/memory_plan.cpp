// SPDX-License-Identifier: MIT
#include "lib/plan/memory_plan.h"

#include <ATen/core/Tensor.h>

#include "backends/check_config.h"
#include "lib/core/units.h"
#include "lib/plan/rank_planner.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {
namespace {

// Workspace of matrix products on each of two streams: cuBLASLt's (lib/ops/cuda/gemm.cpp), or
// cuBLAS's.
constexpr double kWorkspaceBytes16 = 2 * 64 * kMiB, kWorkspaceBytes32 = 2 * 32 * kMiB;
// Memory of LibTorch's caching allocator beyond tensors: 0.2 to 1.2 GiB for equal steps
// (benchmarks/results/2026-11-22-h200.md). Micro-batches of varying size leave blocks that fit
// nothing later, at most half of the activations.
constexpr double kFragmentBytes = 512 * kMiB, kFragmentShare = 0.35;
constexpr double kCommunicatorBytes = 220 * kMiB;  // NCCL channels

// LibTorch's own workspace for products on the stream that captures micro-batches.
constexpr double kRecordedWorkspaceBytes = 96 * kMiB;

// True if GPUs capture micro-batches of repeating shapes as graphs
// (backends/common/step_graph_runner.cpp).
bool is_recorded(const PlannedLayout& layout) {
  const MeshExtents& mesh = layout.mesh;
  const ShardingRules rules = sharding_rules(layout.parallel, mesh);
  return mesh.ranks() == 1 && !rules.gathers_parameters && !rules.shards_gradients &&
         layout.parallel.offload.what == Offload::kNone && !layout.parallel.offload.activations;
}

// For ranks with full parameters and gradients: true with frozen ones, such as with adapters.
bool has_frozen(const PlannedLayout& layout, const StateMemory& state) {
  const PrecisionConfig& precision = layout.parallel.precision;
  const auto bytes = [](at::ScalarType dtype) {
    return static_cast<double>(c10::elementSize(dtype));
  };
  return state.gradient_bytes / bytes(precision.gradient_dtype()) <
         state.parameter_bytes / bytes(precision.parameter);
}

double workspace_of(const PlannedLayout& layout, const StateMemory& state) {
  if (!layout.on_gpu) return 0;
  const bool fp32 = layout.parallel.precision.parameter == at::kFloat;
  const bool by_libtorch = fp32 || has_frozen(layout, state);
  return (fp32 ? kWorkspaceBytes32 : kWorkspaceBytes16) +
         (by_libtorch && is_recorded(layout) ? kRecordedWorkspaceBytes : 0);
}

double fragments_of(const PlannedLayout& layout, const BatchShape& batch,
                    const Activations& activations) {
  if (!layout.on_gpu) return 0;
  return kFragmentBytes + (batch.varies ? kFragmentShare * activations.total() : 0);
}

double communicators_of(const PlannedLayout& layout, const Card& card) {
  if (card.device.empty()) return 0;
  const MeshExtents& mesh = layout.mesh;
  const int axes = (mesh.pipeline > 1) + (mesh.data > 1) + (mesh.tensor > 1) +
                   2 * (mesh.context > 1) + (mesh.expert > 1) +
                   (mesh.expert > 1 && mesh.expert < mesh.data);
  return axes * kCommunicatorBytes;
}

}  // namespace

MeshCoordinate largest_rank(const PlannedLayout& layout, int stage) {
  constexpr int kMostTried = 8;
  const int ranks = layout.mesh.sharding();
  MeshCoordinate largest{.pipeline = stage};
  const bool alike =
      state_needs(layout.optimizer).rules.block == 1 && whole_matrices(layout.optimizer) == nullptr;
  if (alike || ranks == 1) return largest;
  double most = -1;
  for (int rank = 0; rank < ranks; ++rank) {
    // Tries only the first ranks and the last one.
    if (rank >= kMostTried - 1 && rank + 1 < ranks) continue;
    const MeshCoordinate coordinate{.pipeline = stage,
                                    .data = rank / layout.mesh.context,
                                    .context = rank % layout.mesh.context};
    const StateMemory state = RankPlanner(layout, coordinate).lasting();
    const double held = state.device_bytes() + state.host_bytes;
    if (held <= most) continue;
    most = held;
    largest = coordinate;
  }
  return largest;
}

MemoryPlan plan_rank(const PlannedLayout& layout, const BatchShape& batch, const Card& card,
                     const BetweenSteps& between, const MeshCoordinate& coordinate) {
  RankPlanner planner(layout, coordinate);
  MemoryPlan rank{.activations = planner.step(batch)};
  rank.state = planner.state();
  if (between.evaluation) rank.evaluation = planner.evaluation(*between.evaluation);
  if (between.generation) {
    const BatchShape& begin = *between.generation;
    rank.generation = planner.generation(begin);
    const Activations goes_on = planner.generation(
        BatchShape{.rows = begin.rows, .capacity = begin.capacity, .begun = true});
    if (goes_on.total() > rank.generation.total()) rank.generation = goes_on;
  }
  rank.workspace = workspace_of(layout, rank.state);
  hold_activations(layout, batch, rank.activations, rank);
  rank.communicators = communicators_of(layout, card);
  rank.context = card.context_bytes;
  return rank;
}

void hold_activations(const PlannedLayout& layout, const BatchShape& batch,
                      const Activations& activations, MemoryPlan& rank) {
  rank.activations = activations;
  rank.fragments = fragments_of(layout, batch, activations);
}

std::vector<MemoryPlan> memory_plan(const PlannedLayout& given, const BatchShape& batch,
                                    const Card& card, const BetweenSteps& between, int stages) {
  const PlannedLayout layout = with_passes(given);
  std::vector<MemoryPlan> plans;
  for (int stage = 0; stage < std::min(stages, layout.mesh.pipeline); ++stage) {
    plans.push_back(plan_rank(layout, batch, card, between, largest_rank(layout, stage)));
  }
  return plans;
}

int64_t room_for_state(const PlannedLayout& layout, const BatchShape& batch, const Card& card,
                       double memory, const BetweenSteps& between) {
  PlannedLayout without = layout;
  without.parallel.offload.device_bytes = 0;
  double most = 0;
  for (const MemoryPlan& stage : memory_plan(without, batch, card, between)) {
    most = std::max(most, stage.device_bytes());
  }
  return static_cast<int64_t>(std::max(0.0, (1 - kMemoryReserve) * memory - most));
}

}  // namespace tessera
