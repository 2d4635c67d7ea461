// SPDX-License-Identifier: MIT
#pragma once
// Pipeline rows of the parity table, and models for them.
#include <string>

#include "tests/parity/rows.h"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {

inline ParityWork toy_work(bool tied, int64_t layers = 3, int64_t rows = 24) {
  return token_work(toy_language_model({.layers = layers, .tied = tied}),
                    {.rows = rows, .steps = 3});
}

inline DecoderConfig bloom_config(bool tied) {
  auto bloom = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 3});
  bloom.tied_head = tied;
  return bloom;
}

inline ParityRow make_row(const std::string& strategy, int stages, int data, int micro_batches,
                          const std::string& schedule = "1f1b", int chunks = 1) {
  ParityRow row{.ranks = stages * data, .accumulation = micro_batches, .pipeline = stages};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 20;
  row.parallel.pipeline.schedule = schedule;
  row.parallel.pipeline.chunks = chunks;
  return row;
}

}  // namespace tessera::testing
