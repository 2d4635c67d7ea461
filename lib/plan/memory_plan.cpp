// SPDX-License-Identifier: MIT
#include "lib/plan/memory_plan.h"

#include <ATen/core/Tensor.h>

#include "backends/check_config.h"
#include "lib/core/units.h"
#include "lib/plan/optimizer_state.h"
#include "lib/plan/rules.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

// Of matrix products, on each of two streams: cuBLASLt's (lib/ops/cuda/gemm.cpp), or cuBLAS's.
constexpr double kWorkspaceBytes16 = 2 * 64 * kMiB, kWorkspaceBytes32 = 2 * 32 * kMiB;
// What LibTorch's caching allocator holds beside the tensors: 0.2 to 1.2 GiB when steps are alike
// (benchmarks/results/2026-11-22-h200.md); where micro-batches differ in size, some of the blocks
// of smaller ones fit nothing later, half of the activations at the most.
constexpr double kFragmentBytes = 512 * kMiB, kFragmentShare = 0.35;
constexpr double kCommunicatorBytes = 220 * kMiB;  // channels of NCCL

// What LibTorch keeps for products of its own on the stream that records micro-batches.
constexpr double kRecordedWorkspaceBytes = 96 * kMiB;

// Whether a GPU records micro-batches whose shapes repeat (backends/common/sharding_graphs.cpp).
bool is_recorded(const LayoutPlan& plan) {
  const MeshExtents& mesh = plan.mesh;
  const ShardingRules rules = rules_of(plan);
  return mesh.pipeline * mesh.data * mesh.tensor == 1 && !rules.gathers_parameters &&
         !rules.shards_gradients && plan.parallel.offload.what == Offload::kNone;
}

// Of a rank that holds parameters and gradients in full: with adapters, say.
bool has_frozen(const LayoutPlan& plan, const LayoutCost& state) {
  const Dtypes bytes(plan.parallel.precision);
  return state.gradient_bytes / bytes.gradient < state.parameter_bytes / bytes.parameter;
}

double workspace_of(const LayoutPlan& plan, const LayoutCost& state) {
  if (!plan.on_gpu) return 0;
  const bool fp32 = plan.parallel.precision.parameter == at::kFloat;
  const bool by_libtorch = fp32 || has_frozen(plan, state);
  return (fp32 ? kWorkspaceBytes32 : kWorkspaceBytes16) +
         (by_libtorch && is_recorded(plan) ? kRecordedWorkspaceBytes : 0);
}

double fragments_of(const LayoutPlan& plan, const BatchShape& batch,
                    const Activations& activations) {
  if (!plan.on_gpu) return 0;
  return kFragmentBytes + (batch.varies ? kFragmentShare * activations.total() : 0);
}

double communicators_of(const LayoutPlan& plan, const Card& card) {
  if (card.device.empty()) return 0;
  const MeshExtents& mesh = plan.mesh;
  const int axes = (mesh.pipeline > 1) + (mesh.data > 1) + (mesh.tensor > 1);
  return axes * kCommunicatorBytes;
}

}  // namespace

void check_plan(const LayoutPlan& plan) {
  check_config(plan.parallel, plan.mesh);
  const std::string problem = tensor_parallel_problem(plan.model, plan.mesh.tensor);
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  require_state_blocks(plan);
}

MemoryPlan state_plan(const LayoutPlan& plan, const Card& card, int stage) {
  const LayoutCost state = layout_cost(plan, stage);
  return {.state = state,
          .workspace = workspace_of(plan, state),
          .communicators = communicators_of(plan, card),
          .context = card.context_bytes};
}

void hold_activations(const LayoutPlan& plan, const BatchShape& batch,
                      const Activations& activations, MemoryPlan& stage) {
  stage.activations = activations;
  stage.fragments = fragments_of(plan, batch, activations);
}

std::vector<MemoryPlan> memory_plan(const LayoutPlan& plan, const BatchShape& batch,
                                    const Card& card, const BetweenSteps& between) {
  check_plan(plan);
  std::vector<MemoryPlan> stages;
  for (const Activations& activations : activations_of(plan, batch)) {
    MemoryPlan stage = state_plan(plan, card, static_cast<int>(stages.size()));
    hold_activations(plan, batch, activations, stage);
    stages.push_back(std::move(stage));
  }
  const auto add = [&](const std::optional<BatchShape>& shape, Pass pass, int64_t together,
                       Activations MemoryPlan::*to) {
    if (!shape) return;
    LayoutPlan passes = plan;
    passes.accumulation = together;
    const std::vector<Activations> all = activations_of(passes, *shape, pass);
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      Activations& most = stages[stage].*to;
      if (all[stage].total() > most.total()) most = all[stage];
    }
  };
  add(between.evaluation, Pass::kEvaluation, 1, &MemoryPlan::evaluation);
  const auto generate = [&](const std::optional<BatchShape>& shape) {
    add(shape, Pass::kPrediction, plan.mesh.pipeline, &MemoryPlan::generation);
  };
  generate(between.generation);
  if (between.generation) {
    const BatchShape& begin = *between.generation;
    generate(BatchShape{.rows = begin.rows, .capacity = begin.capacity, .begun = true});
  }
  return stages;
}

}  // namespace tessera
