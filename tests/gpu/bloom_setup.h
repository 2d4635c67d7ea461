// SPDX-License-Identifier: MIT
#pragma once
// A BLOOM in bf16, large enough to keep a GPU busy.
#include <string>

#include "lib/testing/player.h"
#include "tessera/models/language_model.h"
#include "tests/support/sized.h"

namespace tessera::testing {

constexpr int64_t kBloomVocabulary = 1000;

inline Setup bloom_setup(const std::string& strategy, const MeshExtents& mesh, int64_t layers,
                         int64_t hidden = 1024) {
  ParallelConfig config{.strategy = strategy};
  config.precision.parameter = at::kBFloat16;
  return {causal(sized("bloom", {.vocabulary = kBloomVocabulary,
                                 .hidden = hidden,
                                 .heads = hidden / 64,
                                 .layers = layers})),
          mesh, config};
}

}  // namespace tessera::testing
