// SPDX-License-Identifier: MIT
#pragma once
// What a pass over micro-batches holds besides parameters, gradients and optimizer: from blocks
// that run without memory, and the schedule's order.
#include <cstdint>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/plan/layout_cost.h"

namespace tessera {

class BlockMeter;
struct StageLayout;

// A micro-batch, as far as memory goes.
struct BatchShape {
  int64_t rows = 1, length = 1;  // of input_ids
  std::vector<int64_t> packed;   // PackedRows::lengths
  int64_t sequence = 0;          // PackedRows::sequence
  bool masked = false;           // there is an attention_mask
  int64_t labels = 0;            // of classification; 0: one a token
  int64_t head_rows = 0;         // of head_positions; 0: there are none
  bool varies = false;           // others are smaller: what was theirs does not always serve again
  int64_t capacity = 0;          // of the key/value cache that the rows begin; 0: there is none
  bool begun = false;            // each row goes on by one token, with such a cache
};

// What a rank does with micro-batches: steps, evaluations, or scores in place of the loss.
enum class Pass { kStep, kEvaluation, kPrediction };

BatchShape shape_of(const MicroBatch& micro_batch);

// Bytes of one rank when they are most.
struct Activations {
  double embedding = 0, layers = 0;  // between a block's forward and its backward
  double gradients = 0;              // of activations, and those that stages exchange
  double deferred = 0;               // of which weight gradients are yet to be made
  double running = 0;                // of the block that runs then, beyond what it keeps
  bool head_runs = false;            // that is the loss
  bool defers = false;               // some of the stage's blocks defer their weight gradients
  double constants = 0;              // of blocks, besides parameters: tables of positions
  double inputs = 0;                 // the micro-batches
  double cache = 0;                  // of keys and values

  double total() const {
    return embedding + layers + gradients + deferred + running + constants + inputs + cache;
  }
};

// Of a rank of every stage; LayoutPlan::accumulation micro-batches pass together. Runs the model's
// blocks on tensors without memory: exact for what their operations allocate. Throws as
// layout_cost(), and Error(kInternal) for a block that cannot run so.
std::vector<Activations> activations_of(const LayoutPlan& plan, const BatchShape& batch,
                                        Pass pass = Pass::kStep);

// The same of one stage, where blocks are metered and stages laid out already: plans may differ in
// what runs again in backward.
Activations activations_of_stage(const LayoutPlan& plan, const BlockMeter& meter,
                                 const StageLayout& layout, int stage, Pass pass = Pass::kStep);

}  // namespace tessera
