// SPDX-License-Identifier: MIT
#pragma once
// Models and layouts of the context axis's parity tests.
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/sized.h"

namespace tessera::testing {

inline constexpr int64_t kVocabulary = 37;
// 13 tokens divide among no rank's pieces.
inline const TokenBatches kBatches{
    .vocabulary = kVocabulary, .rows = 8, .sequence = 13, .steps = 3};

inline DecoderConfig small(const std::string& family, const Sizes& more = {}) {
  DecoderConfig config = LanguageModel::defaults(family);
  config = sized({.vocabulary = kVocabulary,
                  .hidden = 24,
                  .heads = 4,
                  .layers = 2,
                  .initializer_range = 0.1,
                  .dropout = 0},
                 config);
  return sized(more, config);
}

inline ParityRow context_row(const std::string& strategy, int data, int context,
                             ContextAttention by) {
  ParityRow row{.ranks = data * context, .context = context};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 100;
  row.parallel.context_attention = by;
  return row;
}

}  // namespace tessera::testing
