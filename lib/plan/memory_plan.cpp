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

MemoryPlan memory_plan(const LayoutPlan& plan, const BatchShape& batch, const Card& card,
                       int stage) {
  MemoryPlan memory{.state = layout_cost(plan, stage)};
  memory.activations = activations_of(plan, batch, stage);
  if (plan.on_gpu) memory.workspace = kWorkspaceBytes;
  memory.communicators = communicators_of(plan, card);
  memory.context = card.context_bytes;
  return memory;
}

}  // namespace tessera
