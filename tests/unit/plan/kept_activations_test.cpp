// SPDX-License-Identifier: MIT
// Planned memory that a layer saves for backward, with ParallelConfig::save_norm_outputs and
// without.
#include "lib/plan/rank_planner.h"
#include "tessera/models/language_model.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kHidden = 128, kTokens = 3 * 96, kInner = 384;

struct Case {
  std::string name;
  ModelSpec model;
  int64_t inner;
};

std::vector<Case> cases() {
  Sizes sizes{.vocabulary = 1024, .hidden = kHidden, .heads = 4, .layers = 2};
  const auto bloom = sized("bloom", sizes);
  sizes.max_positions = 512;
  sizes.inner = 4 * kHidden;
  const auto gpt2 = sized("gpt2", sizes);
  const auto llama =
      sized({.inner = kInner, .key_heads = 2, .head_dim = 32}, sized("llama", sizes));
  return {{"BLOOM", causal(bloom), 4 * kHidden},
          {"GPT-2", causal(gpt2), 4 * kHidden},
          {"Llama", causal(llama), kInner}};
}

// Bytes that a layer's forward saves for its backward.
int64_t kept(const Case& test, bool keep, bool recompute, int tensor) {
  PlannedLayout layout{.parallel = {.strategy = "ddp",
                                    .gradient_checkpointing = recompute,
                                    .save_norm_outputs = keep,
                                    .sequence_parallel = tensor > 1},
                       .mesh = {.tensor = tensor},
                       .model = test.model,
                       .on_gpu = true};
  layout.parallel.precision.parameter = at::kBFloat16;
  RankPlanner rank(layout, {});
  rank.step({.rows = 3, .length = 96});
  return rank.kept_by(test.model.blocks[1].name);
}

}  // namespace

TEST_CASE("kept activations take what two norms and an activation function put out") {
  for (const Case& test : cases()) {
    for (const int tensor : {1, 2}) {
      INFO(test.name << " on " << tensor << " tensor ranks");
      const int64_t bytes = kTokens * (2 * kHidden + test.inner) * 2 / tensor;
      CHECK(kept(test, true, false, tensor) - kept(test, false, false, tensor) == bytes);
      CHECK(kept(test, true, true, tensor) == kept(test, false, true, tensor));
    }
  }
}
