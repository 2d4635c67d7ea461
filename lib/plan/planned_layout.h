// SPDX-License-Identifier: MIT
#pragma once
// A model, its layout over ranks, and the shapes it runs with.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/adamw.h"

namespace tessera {

class EqualPasses;

struct PlannedLayout {
  ParallelConfig parallel;                      // the strategy and its sizes
  MeshExtents mesh;                             // ranks along each axis
  int64_t accumulation = 1;                     // micro-batches per step
  ModelSpec model;                              // as passed to attach()
  OptimizerFactory optimizer = make_adamw({});  // as passed to attach()
  bool on_gpu = false;                          // whether the strategy runs on GPUs
  bool saves_frozen = true;                     // checkpoints include frozen parameters
  // Recorded block passes, shared by several plans of one model. Null: every block runs.
  std::shared_ptr<EqualPasses> passes = nullptr;
};

// Shape of a micro-batch, as far as memory depends on it.
struct BatchShape {
  int64_t rows = 1, length = 1;  // of input_ids
  std::vector<int64_t> packed;   // PackedRows::lengths
  int64_t sequence = 0;          // PackedRows::sequence
  bool masked = false;           // with an attention_mask
  int64_t labels = 0;            // of classification; 0: one per token
  int64_t head_rows = 0;         // size of head_positions; 0: undefined
  bool varies = false;   // other micro-batches are smaller, so freed blocks do not always fit
  int64_t capacity = 0;  // tokens of the key/value cache that the pass begins; 0: no cache
  bool begun = false;    // decoding: each row continues by one token, with such a cache
};

// Work of a run between its steps.
struct BetweenSteps {
  std::optional<BatchShape> evaluation;  // one micro-batch at a time
  std::optional<BatchShape> generation;  // prefill of the prompts, one micro-batch for every stage
};

// Adds empty `passes` if there are none.
PlannedLayout with_passes(PlannedLayout layout);

BatchShape shape_of(const MicroBatch& micro_batch);
// A meta micro-batch of this shape.
MicroBatch micro_batch_of(const BatchShape& shape);

}  // namespace tessera
