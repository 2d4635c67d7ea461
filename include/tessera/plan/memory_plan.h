#pragma once
// All that one rank holds in training, by category, from shapes alone.
#include <cstdint>

#include "tessera/plan/card.h"
#include "tessera/plan/layout_cost.h"

namespace tessera {

// A micro-batch, as far as memory goes.
struct BatchShape {
  int64_t rows = 1, length = 1;
  int64_t hidden = 0, layers = 0, heads = 0, vocabulary = 0;  // 0: a head without logits
};

// Bytes of one rank of a pipeline stage at the peak of a step.
struct MemoryPlan {
  LayoutCost state;        // parameters, gradients, optimizer, buffers; on the host
  double activations = 0;  // what forward keeps for backward, and what runs at the peak
  double inputs = 0;       // batches: the step's and the next one's
  double communicators = 0, context = 0;  // not tensors

  double tensors() const { return state.device_bytes() + activations + inputs; }
  double device_bytes() const { return tensors() + communicators + context; }
  // On hosts without a GPU all is one memory.
  double needed(const Card& card) const {
    return device_bytes() + (card.device.empty() ? state.host_bytes : 0);
  }
};

// Throws Error(kInvalidArgument) for a model that the mesh cannot share or cut.
MemoryPlan memory_plan(const LayoutPlan& plan, const BatchShape& batch, const Card& card,
                       int stage = 0);

}  // namespace tessera
