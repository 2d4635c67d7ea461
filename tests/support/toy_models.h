// SPDX-License-Identifier: MIT
#pragma once
// Small models with real ones' difficulties: tied embedding, odd sizes, small and large parameters,
// a counter.
#include "tessera/model/model_spec.h"

namespace tessera::testing {

struct ToyConfig {
  int64_t vocabulary = 31;
  int64_t hidden = 12;
  int64_t layers = 3;
  bool tied = true;
};

// Blocks: embedding, "layer.i" (hidden -> hidden MLP with residual and a norm), head (linear on the
// embedding's weight when tied, cross-entropy). Modules "layer.i.up" and "layer.i.down" can have
// adapters.
ModelSpec toy_language_model(const ToyConfig& config = {});

// A micro-batch of random tokens with about a fifth of the labels ignored; equal on every rank for
// equal seeds.
MicroBatch toy_micro_batch(const ToyConfig& config, int64_t rows, int64_t sequence, uint64_t seed);

// The rows [first, first + rows) of a micro-batch.
MicroBatch rows_of(const MicroBatch& batch, int64_t first, int64_t rows);

}  // namespace tessera::testing
