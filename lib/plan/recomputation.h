// SPDX-License-Identifier: MIT
#pragma once
// Choice of blocks to recompute so that a rank's activations stay within a limit: the fewest that
// suffice (ParallelConfig::recomputed_blocks).
#include <cstdint>
#include <vector>

#include "lib/plan/memory_plan.h"

namespace tessera {

// Limit per rank; exactly one member is given.
struct ActivationLimit {
  double bytes = 0;   // activations of a step plus the workspace of matrix products
  double memory = 0;  // all planned memory; a reserve of it stays free
};

// Share of ActivationLimit::bytes that stays free.
constexpr double kActivationReserve = 0.02;

// Choice for one pipeline stage.
struct StageRecomputation {
  std::vector<int64_t> blocks;  // indices in the model, ascending
  int64_t able = 0;             // number of blocks worth recomputing, the upper limit
  MemoryPlan plan;              // the plan with these blocks recomputed
  double allowed = 0;           // limit of activations and workspace in bytes, less the reserve
  bool fits = false;            // false: no choice fits, and this one needs least

  double held() const { return plan.activations.total() + plan.workspace; }
};

// By stage; ignores recomputation in plan.parallel. Chooses blocks by the decrease of the peak per
// cost; of equal blocks those that run first. See [Note: which blocks run again]. Throws as
// memory_plan().
std::vector<StageRecomputation> choose_recomputation(const PlannedLayout& layout,
                                                     const BatchShape& batch, const Card& card,
                                                     const ActivationLimit& limit);

// Limit of the stage with least.
double least_allowed(const std::vector<StageRecomputation>& stages);

// The blocks of all stages, ascending.
std::vector<int64_t> blocks_of(const std::vector<StageRecomputation>& stages);

// Blocks that run on this stage only, as indices in the model.
std::vector<size_t> own_blocks(const PlannedLayout& layout, int stage);

// Recomputed share of a stage's forward FLOPs without the loss; the largest over stages. 1: all, as
// with gradient_checkpointing.
double recomputed_share(const PlannedLayout& layout);

}  // namespace tessera
