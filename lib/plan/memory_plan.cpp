#include "tessera/plan/memory_plan.h"

#include "tessera/plan/activations.h"

namespace tessera {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kCommunicatorBytes = 220 * kMiB;  // channels of NCCL

double inputs_of(const LayoutPlan& plan, const BatchShape& batch) {
  const double tokens = static_cast<double>(batch.rows * batch.length);
  return 2.0 * static_cast<double>(plan.accumulation) * tokens * 2 * 8;  // ids and labels
}

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
  memory.activations = activation_bytes(plan, {.layers = batch.layers,
                                               .hidden = batch.hidden,
                                               .heads = batch.heads,
                                               .rows = batch.rows,
                                               .length = batch.length,
                                               .vocabulary = batch.vocabulary});
  memory.inputs = inputs_of(plan, batch);
  memory.communicators = communicators_of(plan, card);
  memory.context = card.context_bytes;
  return memory;
}

}  // namespace tessera
