// SPDX-License-Identifier: MIT
// What a layer keeps for backward with ParallelConfig::keep_activations and without, by the plan.
#include "lib/plan/block_memory.h"
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

BlockBytes layer(const Case& test, bool keep, bool recompute, int tensor) {
  LayoutPlan plan{.parallel = {.strategy = "ddp",
                               .gradient_checkpointing = recompute,
                               .keep_activations = keep,
                               .sequence_parallel = tensor > 1},
                  .mesh = {.tensor = tensor},
                  .model = test.model,
                  .on_gpu = true};
  plan.parallel.precision.parameter = at::kBFloat16;
  return BlockMeter(plan, {.rows = 3, .length = 96}, Pass::kStep).of(1);
}

}  // namespace

TEST_CASE("kept activations take what two norms and an activation function put out") {
  for (const Case& test : cases()) {
    for (const int tensor : {1, 2}) {
      INFO(test.name << " on " << tensor << " tensor ranks");
      const BlockBytes anew = layer(test, false, false, tensor),
                       kept = layer(test, true, false, tensor);
      const int64_t bytes = kTokens * (2 * kHidden + test.inner) * 2 / tensor;
      CHECK(kept.kept - anew.kept == bytes);
      CHECK(kept.backward < anew.backward);
      CHECK(kept.forward == anew.forward);
      CHECK(kept.plain == anew.plain);
      CHECK(kept.output == anew.output);
      const BlockBytes again = layer(test, true, true, tensor);
      CHECK(again.kept == anew.kept);
      CHECK(again.backward == anew.backward);
    }
  }
}
