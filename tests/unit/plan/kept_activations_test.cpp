// SPDX-License-Identifier: MIT
// Planned memory that a layer saves for backward, with ParallelConfig::save_norm_outputs and
// recompute_experts, and without.
#include <utility>

#include "lib/plan/rank_planner.h"
#include "tessera/model/lora.h"
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
int64_t kept(const Case& test, ParallelConfig parallel, int tensor) {
  parallel.strategy = "ddp";
  parallel.sequence_parallel = tensor > 1;
  PlannedLayout layout{.parallel = std::move(parallel),
                       .mesh = {.tensor = tensor},
                       .model = test.model,
                       .on_gpu = true};
  layout.parallel.precision.parameter = at::kBFloat16;
  RankPlanner rank(layout, {});
  rank.step({.rows = 3, .length = 96});
  return rank.kept_by(test.model.blocks[1].name);
}

}  // namespace

TEST_CASE("experts formed again keep neither gates nor ups, nor adapters' products") {
  DecoderConfig config = LanguageModel::defaults("qwen3_moe");
  config.vocabulary = 1024, config.hidden = kHidden, config.heads = 4, config.layers = 2;
  const int64_t rows = kTokens * config.experts_per_token;
  for (const int64_t r : {0, 8}) {
    const ModelSpec base = causal(config);
    const Case test{"Qwen3-MoE",
                    r == 0 ? base : add_lora(base, {.r = r, .target_modules = {"all-linear"}}), 0};
    for (const int tensor : {1, 2}) {
      INFO(r << " of rank, " << tensor << " tensor ranks");
      const auto bytes_of = [&](bool again, bool whole) {
        return kept(test, {.gradient_checkpointing = whole, .recompute_experts = again}, tensor);
      };
      const int64_t of_row = 2 * config.expert_inner / tensor + 2 * r;
      CHECK(bytes_of(false, false) - bytes_of(true, false) == rows * of_row * 2);
      CHECK(bytes_of(false, true) == bytes_of(true, true));
    }
  }
}

TEST_CASE("kept activations take what two norms and an activation function put out") {
  for (const Case& test : cases()) {
    for (const int tensor : {1, 2}) {
      INFO(test.name << " on " << tensor << " tensor ranks");
      const int64_t bytes = kTokens * (2 * kHidden + test.inner) * 2 / tensor;
      const auto bytes_of = [&](bool keep, bool whole) {
        return kept(test, {.gradient_checkpointing = whole, .save_norm_outputs = keep}, tensor);
      };
      CHECK(bytes_of(true, false) - bytes_of(false, false) == bytes);
      CHECK(bytes_of(true, true) == bytes_of(false, true));
    }
  }
}
