#pragma once
// What a step holds besides parameters, gradients and optimizer: from blocks that run without
// memory, and the schedule's order.
#include <cstdint>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/plan/layout_cost.h"

namespace tessera {

// A micro-batch, as far as memory goes.
struct BatchShape {
  int64_t rows = 1, length = 1;  // of input_ids
  std::vector<int64_t> packed;   // PackedRows::lengths
  int64_t sequence = 0;          // PackedRows::sequence
  bool masked = false;           // there is an attention_mask
  int64_t labels = 0;            // of classification; 0: one a token
  int64_t head_rows = 0;         // of head_positions; 0: there are none
};

BatchShape shape_of(const MicroBatch& micro_batch);

// Bytes of one rank when they are most.
struct Activations {
  double embedding = 0, layers = 0;  // between a block's forward and its backward
  double gradients = 0;              // of activations, and those that stages exchange
  double running = 0;                // of the block that runs then, beyond what it keeps
  bool head_runs = false;            // that is the loss
  double constants = 0;              // of blocks, besides parameters: tables of positions
  double inputs = 0;                 // the step's micro-batches

  double total() const { return embedding + layers + gradients + running + constants + inputs; }
};

// Of a rank of every stage. Runs the model's blocks on tensors without memory: exact for what their
// operations allocate. Throws as layout_cost(), and Error(kInternal) for a block that cannot run
// so.
std::vector<Activations> activations_of(const LayoutPlan& plan, const BatchShape& batch);

}  // namespace tessera
