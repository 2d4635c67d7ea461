// SPDX-License-Identifier: MIT
// Rows that ranks of a context axis share: against the oracle, which runs them whole.
#include "tessera/models/language_model.h"
#include "tests/parity/ragged_work.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 37;
// 13 tokens divide among no rank's pieces.
const TokenBatches kBatches{.vocabulary = kVocabulary, .rows = 8, .sequence = 13, .steps = 3};

DecoderConfig small(const std::string& family, const Sizes& more = {}) {
  DecoderConfig config = LanguageModel::defaults(family);
  config.pad_token = 0;
  config = sized({.vocabulary = kVocabulary,
                  .hidden = 24,
                  .heads = 4,
                  .layers = 2,
                  .initializer_range = 0.1,
                  .dropout = 0},
                 config);
  return sized(more, config);
}

// Fewer key heads than four ranks, an independent head size, windows in every other layer.
DecoderConfig windowed() {
  DecoderConfig config = small("qwen3", {.inner = 32, .key_heads = 2, .head_dim = 6});
  config.windows = {4, 0};
  return config;
}

struct Family {
  DecoderConfig config;
  PlainForward plain;
};

std::vector<Family> families() {
  const DecoderConfig bloom = small("bloom"), gpt2 = small("gpt2", {.max_positions = 13}),
                      llama = small("llama", {.inner = 32, .key_heads = 2, .head_dim = 6});
  return {{bloom, plain_bloom(bloom)},
          {gpt2, plain_gpt2(gpt2)},
          {llama, plain_llama(llama)},
          {windowed(), plain_llama(windowed())}};
}

ParityRow context_row(const std::string& strategy, int data, int context, ContextAttention by) {
  ParityRow row{.ranks = data * context, .context = context};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 100;
  row.parallel.context_attention = by;
  return row;
}

}  // namespace

TEST_CASE("rows cut by keys reproduce whole rows") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork work = token_work(causal(family.config), kBatches, family.plain);
    const RankRecord expected = reference(work);
    for (const int ranks : {2, 4}) {
      check_row(context_row("ddp", 1, ranks, ContextAttention::kKeys), work, expected);
    }
  }
}

TEST_CASE("rows cut by heads reproduce whole rows") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork work = token_work(causal(family.config), kBatches, family.plain);
    const RankRecord expected = reference(work);
    for (const int ranks : {2, 4}) {
      if (family.config.key_head_count() % ranks != 0) continue;
      check_row(context_row("ddp", 1, ranks, ContextAttention::kHeads), work, expected);
    }
  }
}

TEST_CASE("packed rows stay apart where they are cut") {
  for (Family family : families()) {
    INFO(family.config.model_type);
    const ParityWork work =
        ragged_work(causal(family.config), family.plain, kVocabulary, RowsAre::kPacked);
    const RankRecord expected = reference(work);
    check_row(context_row("ddp", 1, 2, ContextAttention::kKeys), work, expected);
    check_row(context_row("ddp", 1, 2, ContextAttention::kHeads), work, expected);
    check_row(context_row("ddp", 1, 4, ContextAttention::kKeys), work, expected);
  }
}
