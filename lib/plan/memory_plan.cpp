#include "tessera/plan/memory_plan.h"

namespace tessera {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kWorkspaceBytes = 64 * kMiB;      // of cuBLASLt, see lib/ops/cuda/gemm.cpp
constexpr double kCommunicatorBytes = 220 * kMiB;  // channels of NCCL

double communicators_of(const LayoutPlan& plan, const Card& card) {
  if (card.device.empty()) return 0;
  const MeshExtents& mesh = plan.mesh;
  const int axes = (mesh.pipeline > 1) + (mesh.data > 1) + (mesh.tensor > 1);
  return axes * kCommunicatorBytes;
}

}  // namespace

std::vector<MemoryPlan> memory_plan(const LayoutPlan& plan, const BatchShape& batch,
                                    const Card& card) {
  std::vector<MemoryPlan> stages;
  for (const Activations& activations : activations_of(plan, batch)) {
    stages.push_back({.state = layout_cost(plan, static_cast<int>(stages.size())),
                      .activations = activations,
                      .workspace = plan.on_gpu ? kWorkspaceBytes : 0,
                      .communicators = communicators_of(plan, card),
                      .context = card.context_bytes});
  }
  return stages;
}

}  // namespace tessera
