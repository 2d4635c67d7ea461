// SPDX-License-Identifier: MIT
#pragma once
// Memory of one rank in training by category, from a dry run of the real strategy.
#include <algorithm>
#include <limits>
#include <vector>

#include "lib/plan/card.h"
#include "lib/plan/planned_layout.h"
#include "lib/plan/traffic.h"

namespace tessera {

// Persistent memory of one rank; categories as in StrategyMemory.
struct StateMemory {
  // Bytes on the device, by category.
  double parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, buffer_bytes = 0;
  double host_bytes = 0;        // bytes in host memory
  double host_state_bytes = 0;  // part of host_bytes: masters and moments, which every step changes
  double host_activation_bytes = 0;  // part of host_bytes: buffers of offloaded activations
  double saved_bytes = 0;  // of a checkpoint written by this rank, which holds a copy meanwhile
  double comm_bytes_per_step = 0;  // sent by one rank over all axes
  std::vector<Traffic> traffic;

  // Bytes of all categories on the device.
  double device_bytes() const {
    return parameter_bytes + gradient_bytes + optimizer_bytes + buffer_bytes;
  }
};

// Peak bytes of one rank beyond persistent memory.
struct Activations {
  double embedding = 0, layers = 0;  // between a block's forward and its backward
  double gradients = 0;              // of activations, and of messages between stages
  double deferred = 0;               // saved for deferred weight gradients
  double running = 0;                // temporary memory of the running block
  bool head_runs = false;            // the running block is the loss
  bool defers = false;               // some of the stage's blocks defer weight gradients
  double constants = 0;              // constant tables of blocks, such as positions
  double inputs = 0;                 // micro-batches
  double cache = 0;                  // key/value cache

  double total() const {
    return embedding + layers + gradients + deferred + running + constants + inputs + cache;
  }
};

// Peak bytes of one rank of a pipeline stage.
struct MemoryPlan {
  StateMemory state;                      // persistent, on device and host
  Activations activations;                // of a step
  Activations evaluation, generation;     // instead of a step's; zeros: none
  double workspace = 0;                   // of matrix products
  double fragments = 0;                   // allocator memory beyond tensors
  double communicators = 0, context = 0;  // outside the allocator

  double running() const {
    return std::max({activations.total(), evaluation.total(), generation.total()});
  }
  double tensors() const { return state.device_bytes() + running() + workspace; }
  double device_bytes() const { return tensors() + fragments + communicators + context; }
  // Without a GPU, device and host are one memory.
  double needed(const Card& card) const {
    return device_bytes() + (card.device.empty() ? state.host_bytes : 0);
  }
};

// The stage's rank with most memory. Ranks of the data axis differ if optimizer state depends on
// the parameter, or owners hold whole matrices.
MeshCoordinate largest_rank(const PlannedLayout& layout, int stage);

// Plan of the rank at `coordinate`. Throws Error(kInvalidArgument) for layouts that no strategy or
// this model supports, NotDry for a block that cannot run on meta tensors.
MemoryPlan plan_rank(const PlannedLayout& layout, const BatchShape& batch, const Card& card,
                     const BetweenSteps& between, const MeshCoordinate& coordinate);

// Replaces the plan's activations of a step.
void hold_activations(const PlannedLayout& layout, const BatchShape& batch,
                      const Activations& activations, MemoryPlan& rank);

// By stage, for the first `stages`: the plan of the rank with most memory. Throws as plan_rank().
std::vector<MemoryPlan> memory_plan(const PlannedLayout& layout, const BatchShape& batch,
                                    const Card& card, const BetweenSteps& between = {},
                                    int stages = std::numeric_limits<int>::max());

// Bytes of offloaded state that fit every rank's device of `memory` bytes, beside the plan's needs
// and a reserve. For OffloadConfig::device_bytes, whose current value is ignored.
int64_t room_for_state(const PlannedLayout& layout, const BatchShape& batch, const Card& card,
                       double memory, const BetweenSteps& between = {});

// Share of a device's memory left free in every plan, for uncounted memory.
constexpr double kMemoryReserve = 0.05;

}  // namespace tessera
