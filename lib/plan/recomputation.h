// SPDX-License-Identifier: MIT
#pragma once
// Which blocks run again in backward so that a rank's activations stay within a limit: as many as
// must, and no more (ParallelConfig::recomputed_blocks).
#include <cstdint>
#include <vector>

#include "lib/plan/memory_plan.h"

namespace tessera {

// What each rank may have. One of the two is given.
struct ActivationLimit {
  double bytes = 0;   // of a step's activations, with the workspace of matrix products
  double memory = 0;  // of all that the plan counts, of which a reserve stays free
};

// The share of ActivationLimit::bytes that no plan is to fill.
constexpr double kActivationReserve = 0.02;

// Of one pipeline stage.
struct StageRecomputation {
  std::vector<int64_t> blocks;  // places in the model, in increasing order
  int64_t able = 0;             // blocks that would save memory: all of them are the most
  MemoryPlan plan;              // with those blocks
  double allowed = 0;           // bytes of activations and workspace, by the limit less its reserve
  bool fits = false;            // false: no choice does, and this one holds least

  double held() const { return plan.activations.total() + plan.workspace; }
};

// By stage; what plan.parallel says of recomputation is not looked at. Blocks are taken by what
// they lower the peak for what they cost to run again, of equal ones those that run first: see
// [Note: which blocks run again]. Throws as memory_plan().
std::vector<StageRecomputation> choose_recomputation(const LayoutPlan& plan,
                                                     const BatchShape& batch, const Card& card,
                                                     const ActivationLimit& limit);

// Of the stage that may hold least.
double least_allowed(const std::vector<StageRecomputation>& stages);

// The blocks of all stages together, in increasing order.
std::vector<int64_t> blocks_of(const std::vector<StageRecomputation>& stages);

// The blocks that a stage runs alone, as places in the model.
std::vector<size_t> own_blocks(const LayoutPlan& plan, int stage);

// What a stage's forward runs again, of all that it runs but the loss, in operations: the stage's
// that has most. 1: everything, as under gradient_checkpointing.
double recomputed_share(const LayoutPlan& plan);

}  // namespace tessera
