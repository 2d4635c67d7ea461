// SPDX-License-Identifier: MIT
#pragma once
// All that one rank holds in training, by category: the real strategy run dry.
#include <algorithm>
#include <limits>
#include <vector>

#include "lib/plan/card.h"
#include "lib/plan/layout_plan.h"
#include "lib/plan/traffic.h"

namespace tessera {

// What lasts, on one rank; the categories are those of StrategyMemory.
struct StatePlan {
  // Bytes on the device, by category.
  double parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, buffer_bytes = 0;
  double host_bytes = 0;        // bytes in host memory
  double host_state_bytes = 0;  // of them masters and moments, which every step changes
  double saved_bytes = 0;       // of a checkpoint, by this rank; a copy of them while it is written
  double comm_bytes_per_step = 0;  // sent by one rank over all axes: the sum of traffic
  std::vector<Traffic> traffic;

  // The bytes of all categories on the device.
  double device_bytes() const {
    return parameter_bytes + gradient_bytes + optimizer_bytes + buffer_bytes;
  }
};

// Bytes of one rank when they are most, beside what lasts.
struct Activations {
  double embedding = 0, layers = 0;  // between a block's forward and its backward
  double gradients = 0;              // of activations, and those that stages exchange
  double deferred = 0;               // of which weight gradients are yet to be made
  double running = 0;                // of the block that runs then, until it is done
  bool head_runs = false;            // that is the loss
  bool defers = false;               // some of the stage's blocks defer their weight gradients
  double constants = 0;              // of blocks, besides parameters: tables of positions
  double inputs = 0;                 // the micro-batches
  double cache = 0;                  // of keys and values

  double total() const {
    return embedding + layers + gradients + deferred + running + constants + inputs + cache;
  }
};

// Bytes of one rank of a pipeline stage when they are most.
struct MemoryPlan {
  StatePlan state;                        // parameters, gradients, optimizer, buffers; on the host
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

// The rank of a stage that has most: ranks of the data axis differ where an optimizer keeps other
// state for some parameters than for others, or whole matrices.
MeshCoordinate largest_rank(const LayoutPlan& plan, int stage);

// Of the rank at this place. Throws Error(kInvalidArgument) for what no strategy does, or this
// model cannot; NotDry for a block that cannot run without memory.
MemoryPlan plan_rank(const LayoutPlan& plan, const BatchShape& batch, const Card& card,
                     const BetweenSteps& between, const MeshCoordinate& coordinate);

// A step with these activations in place of the plan's.
void hold_activations(const LayoutPlan& plan, const BatchShape& batch,
                      const Activations& activations, MemoryPlan& rank);

// By stage, the first `stages` of them, each of the rank that has most. Throws as plan_rank().
std::vector<MemoryPlan> memory_plan(const LayoutPlan& plan, const BatchShape& batch,
                                    const Card& card, const BetweenSteps& between = {},
                                    int stages = std::numeric_limits<int>::max());

// Bytes of offloaded state that can stay on every rank's device, which has so much memory, beside
// all that the plan counts and a reserve (OffloadConfig::device_bytes, which is not looked at).
int64_t room_for_state(const LayoutPlan& plan, const BatchShape& batch, const Card& card,
                       double memory, const BetweenSteps& between = {});

// The share of a device's memory that no plan is to fill: what it does not count is small.
constexpr double kMemoryReserve = 0.05;

}  // namespace tessera
