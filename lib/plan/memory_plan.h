// SPDX-License-Identifier: MIT
#pragma once
// All that one rank holds in training, by category, from shapes alone.
#include <algorithm>
#include <optional>

#include "lib/plan/activations.h"
#include "lib/plan/card.h"
#include "tessera/plan/layout_cost.h"

namespace tessera {

// What a run does between its steps.
struct BetweenSteps {
  std::optional<BatchShape> evaluation;  // one micro-batch at a time
  std::optional<BatchShape> generation;  // the rows' beginnings, a micro-batch for every stage
};

// Bytes of one rank of a pipeline stage when they are most.
struct MemoryPlan {
  LayoutCost state;                       // parameters, gradients, optimizer, buffers; on the host
  Activations activations;                // of a step
  Activations evaluation, generation;     // in place of them; zeros: there is none
  double workspace = 0;                   // of matrix products
  double fragments = 0;                   // what the allocator holds beside tensors
  double communicators = 0, context = 0;  // not tensors

  double running() const {
    return std::max({activations.total(), evaluation.total(), generation.total()});
  }
  double tensors() const { return state.device_bytes() + running() + workspace; }
  double device_bytes() const { return tensors() + fragments + communicators + context; }
  // On hosts without a GPU all is one memory.
  double needed(const Card& card) const {
    return device_bytes() + (card.device.empty() ? state.host_bytes : 0);
  }
};

// Throws Error(kInvalidArgument) for what no strategy does, or this model cannot.
void check_plan(const LayoutPlan& plan);

// A rank of this stage without what a pass holds, and with what a step holds.
MemoryPlan state_plan(const LayoutPlan& plan, const Card& card, int stage);
void hold_activations(const LayoutPlan& plan, const BatchShape& batch,
                      const Activations& activations, MemoryPlan& stage);

// By stage. Throws Error(kInvalidArgument) for a model that the mesh cannot share or cut,
// Error(kInternal) for a block that cannot run without memory.
std::vector<MemoryPlan> memory_plan(const LayoutPlan& plan, const BatchShape& batch,
                                    const Card& card, const BetweenSteps& between = {});

}  // namespace tessera
