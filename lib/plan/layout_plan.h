// SPDX-License-Identifier: MIT
#pragma once
// A model and a way to spread it over ranks, and the shapes that it runs with.
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

struct LayoutPlan {
  ParallelConfig parallel;                      // the strategy and its sizes
  MeshExtents mesh;                             // ranks along each axis
  int64_t accumulation = 1;                     // micro-batches a step
  ModelSpec model;                              // as attach() would be given it
  OptimizerFactory optimizer = make_adamw({});  // likewise
  bool on_gpu = false;                          // whether the strategy runs on GPUs
  bool saves_frozen = true;                     // checkpoints have what is frozen, too
  // Passes of the model's blocks that are known, for several plans of one model. Null: every block
  // runs.
  std::shared_ptr<EqualPasses> passes = nullptr;
};

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

// What a run does between its steps.
struct BetweenSteps {
  std::optional<BatchShape> evaluation;  // one micro-batch at a time
  std::optional<BatchShape> generation;  // the rows' beginnings, a micro-batch for every stage
};

// With passes to share, if it has none.
LayoutPlan with_passes(LayoutPlan plan);

BatchShape shape_of(const MicroBatch& micro_batch);
// One of this shape, without memory.
MicroBatch micro_batch_of(const BatchShape& shape);

}  // namespace tessera
