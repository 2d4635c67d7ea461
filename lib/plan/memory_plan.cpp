// SPDX-License-Identifier: MIT
#include "lib/plan/memory_plan.h"

#include <ATen/core/Tensor.h>

#include "backends/check_config.h"
#include "lib/core/units.h"
#include "lib/plan/optimizer_state.h"
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

double workspace_of(const LayoutPlan& plan) {
  if (!plan.on_gpu) return 0;
  return plan.parallel.precision.parameter == at::kFloat ? kWorkspaceBytes32 : kWorkspaceBytes16;
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
  return {.state = layout_cost(plan, stage),
          .workspace = workspace_of(plan),
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
