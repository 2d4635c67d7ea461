#include "tessera/plan/memory_plan.h"

#include <ATen/core/Tensor.h>

#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

constexpr double kMiB = 1 << 20;
// Of matrix products, on each of two streams: cuBLASLt's (lib/ops/cuda/gemm.cpp), or cuBLAS's.
constexpr double kWorkspaceBytes16 = 2 * 64 * kMiB, kWorkspaceBytes32 = 2 * 32 * kMiB;
// What LibTorch's caching allocator holds beside the tensors when steps are alike: 0.1 to 0.65 GiB
// were measured (docs/plan.md).
constexpr double kFragmentBytes = 512 * kMiB;
constexpr double kCommunicatorBytes = 220 * kMiB;  // channels of NCCL

double workspace_of(const LayoutPlan& plan) {
  if (!plan.on_gpu) return 0;
  return plan.parallel.precision.parameter == at::kFloat ? kWorkspaceBytes32 : kWorkspaceBytes16;
}

double communicators_of(const LayoutPlan& plan, const Card& card) {
  if (card.device.empty()) return 0;
  const MeshExtents& mesh = plan.mesh;
  const int axes = (mesh.pipeline > 1) + (mesh.data > 1) + (mesh.tensor > 1);
  return axes * kCommunicatorBytes;
}

}  // namespace

std::vector<MemoryPlan> memory_plan(const LayoutPlan& plan, const BatchShape& batch,
                                    const Card& card) {
  const std::string problem = tensor_parallel_problem(plan.model, plan.mesh.tensor);
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  std::vector<MemoryPlan> stages;
  for (const Activations& activations : activations_of(plan, batch)) {
    stages.push_back({.state = layout_cost(plan, static_cast<int>(stages.size())),
                      .activations = activations,
                      .workspace = workspace_of(plan),
                      .fragments = plan.on_gpu ? kFragmentBytes : 0,
                      .communicators = communicators_of(plan, card),
                      .context = card.context_bytes});
  }
  return stages;
}

}  // namespace tessera
