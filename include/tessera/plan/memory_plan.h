#pragma once
// All that one rank holds in training, by category, from shapes alone.
#include "tessera/plan/activations.h"
#include "tessera/plan/card.h"
#include "tessera/plan/layout_cost.h"

namespace tessera {

// Bytes of one rank of a pipeline stage at the peak of a step.
struct MemoryPlan {
  LayoutCost state;  // parameters, gradients, optimizer, buffers; on the host
  Activations activations;
  double workspace = 0;                   // of matrix products
  double fragments = 0;                   // what the allocator holds beside tensors
  double communicators = 0, context = 0;  // not tensors

  double tensors() const { return state.device_bytes() + activations.total() + workspace; }
  double device_bytes() const { return tensors() + fragments + communicators + context; }
  // On hosts without a GPU all is one memory.
  double needed(const Card& card) const {
    return device_bytes() + (card.device.empty() ? state.host_bytes : 0);
  }
};

// By stage. Throws Error(kInvalidArgument) for a model that the mesh cannot share or cut,
// Error(kInternal) for a block that cannot run without memory.
std::vector<MemoryPlan> memory_plan(const LayoutPlan& plan, const BatchShape& batch,
                                    const Card& card);

}  // namespace tessera
