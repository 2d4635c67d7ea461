// SPDX-License-Identifier: MIT
// Dropout depends on micro-batch and block only: every layout with equal micro-batches per data
// rank trains the same model, with recomputation and tensor parallelism too.
#include <ATen/ATen.h>

#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tests/parity/context_work.h"
#include "tests/parity/ragged_work.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParityWork gpt2_work(double dropout) {
  const auto config = sized({.vocabulary = 67,
                             .hidden = 24,
                             .inner = 96,
                             .max_positions = 9,
                             .initializer_range = 0.1,
                             .dropout = dropout},
                            LanguageModel::preset("gpt2-tiny").config());
  return token_work(causal(config), {.vocabulary = 67, .rows = 8, .sequence = 7});
}

ParityWork bloom_work(double dropout) {
  const auto config = sized(
      "bloom",
      {.vocabulary = 67, .hidden = 24, .heads = 4, .initializer_range = 0.1, .dropout = dropout});
  return token_work(causal(config), {.vocabulary = 67, .rows = 8, .sequence = 7});
}

using WorkOf = ParityWork (*)(double dropout);
const std::pair<const char*, WorkOf> kModels[] = {{"gpt2", gpt2_work}, {"bloom", bloom_work}};

RankRecord run(const ParityRow& row, const ParityWork& work) { return run_row(row, work).front(); }

ParityRow row_of(const std::string& strategy, const ParityRow& shape, bool checkpointing = false) {
  ParityRow row = shape;
  row.parallel = {.strategy = strategy, .persistence_threshold = 100};
  row.parallel.gradient_checkpointing = checkpointing;
  return row;
}

void check_one_data_rank(WorkOf work_of) {
  // Micro-batches of 7 tokens, which neither 2 nor 4 ranks divide evenly.
  const ParityWork work = work_of(0.2);
  const RankRecord expected = run(row_of("single", {.accumulation = 8}), work);
  CHECK(difference(run(row_of("single", {.accumulation = 8}), work_of(0)), expected, 1e-3) != "");
  for (ParityRow row :
       {row_of("single", {.accumulation = 8}, true), row_of("zero3", {.accumulation = 8}, true),
        row_of("single", {.ranks = 2, .accumulation = 8, .pipeline = 2}),
        row_of("single", {.ranks = 2, .accumulation = 8, .pipeline = 2}, true),
        row_of("single", {.ranks = 2, .accumulation = 8, .tensor = 2}),
        row_of("fsdp", {.ranks = 4, .accumulation = 8, .tensor = 4}, true),
        row_of("single", {.ranks = 4, .accumulation = 8, .pipeline = 2, .tensor = 2})}) {
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && row.tensor == 1) continue;
      row.parallel.sequence_parallel = sequence_parallel;
      INFO(row.name());
      CHECK(difference(run(row, work), expected, 1e-5) == "");
    }
  }
}

void check_two_data_ranks(WorkOf work_of) {
  const ParityWork work = work_of(0.2);
  const ParityRow two{.ranks = 2, .accumulation = 2};
  const RankRecord expected = run(row_of("ddp", two), work);
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    INFO(strategy);
    CHECK(difference(run(row_of(strategy, two), work), expected, 1e-5) == "");
    CHECK(difference(run(row_of(strategy, two, true), work), expected, 1e-5) == "");
  }
  const ParityRow four{.ranks = 4, .accumulation = 2, .tensor = 2};
  CHECK(difference(run(row_of("zero2", four), work), expected, 1e-5) == "");
}

// Plain rows, which end inside a piece; packed and padded ones.
std::vector<ParityWork> cut_works(const ModelSpec& model) {
  return {token_work(model, kBatches), ragged_work(model, {}, kVocabulary, RowsAre::kPacked),
          ragged_work(model, {}, kVocabulary, RowsAre::kPaddedLeft)};
}

void check_context_rows(const ModelSpec& model, const std::vector<ContextAttention>& ways) {
  for (const ParityWork& work : cut_works(model)) {
    const RankRecord expected = single_run(work);
    for (const ContextAttention by : ways) {
      check_row(context_row("ddp", 1, 2, by), work, expected, 2e-5);
      ParityRow row = context_row("zero3", 1, 4, by);
      row.parallel.gradient_checkpointing = true;
      check_row(row, work, expected, 2e-5);
      row = context_row("zero1", 1, 2, by);
      row.ranks = 4;
      row.tensor = 2;
      row.parallel.sequence_parallel = true;
      check_row(row, work, expected, 2e-5);
    }
  }
}

}  // namespace

TEST_CASE("ranks of a context axis drop what one rank drops") {
  for (const char* const family : {"gpt2", "bloom"}) {
    INFO(family);
    const DecoderConfig config = small(family, {.heads = 8, .max_positions = 13, .dropout = 0.2});
    check_context_rows(causal(config), {ContextAttention::kHeads});
    // By keys without dropout of probabilities.
    DecoderConfig hidden_only = config;
    hidden_only.attention_dropout = 0;
    check_context_rows(causal(hidden_only), {ContextAttention::kKeys});
    // Something is dropped.
    const ParityWork work = token_work(causal(config), kBatches);
    DecoderConfig without = hidden_only;
    without.embedding_dropout = without.residual_dropout = 0;
    CHECK(difference(single_run(token_work(causal(without), kBatches)), single_run(work), 1e-3) !=
          "");
  }
}

TEST_CASE("adapters of cut rows drop what one rank drops") {
  const DecoderConfig config =
      small("llama", {.hidden = 32, .heads = 8, .inner = 32, .key_heads = 8});
  const ModelSpec model = add_lora(
      causal(config), {.r = 3, .alpha = 6, .dropout = 0.3, .target_modules = {"all-linear"}});
  check_context_rows(model, {ContextAttention::kHeads, ContextAttention::kKeys});
}

TEST_CASE("dropout of probabilities by keys is refused by name") {
  const ParityWork work =
      token_work(causal(small("gpt2", {.max_positions = 13, .dropout = 0.2})), kBatches);
  CHECK_THROWS_WITH(run_row(context_row("ddp", 1, 2, ContextAttention::kKeys), work),
                    test::contains("--context_attention keys has no dropout"));
  // Four heads do not divide among three ranks.
  CHECK_THROWS_WITH(run_row(context_row("ddp", 1, 3, ContextAttention::kAuto), work),
                    test::contains("that divides 4 query heads and 4 key heads"));
}

TEST_CASE("dropout draws the same under every layout of one data rank") {
  for (const auto& [model, work_of] : kModels) {
    INFO(model);
    check_one_data_rank(work_of);
  }
}

TEST_CASE("dropout draws the same under every strategy of two data ranks") {
  for (const auto& [model, work_of] : kModels) {
    INFO(model);
    check_two_data_ranks(work_of);
  }
}
