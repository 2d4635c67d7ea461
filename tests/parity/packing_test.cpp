// SPDX-License-Identifier: MIT
// Rows of many lengths: packed and padded steps equal those of every row alone, in every layout.
#include <ATen/ATen.h>

#include "tessera/models/language_model.h"
#include "tests/parity/ragged_work.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 37;

DecoderConfig small(const std::string& family, const Sizes& more = {}) {
  DecoderConfig config = LanguageModel::defaults(family);
  config.pad_token = 0;
  config = sized({.vocabulary = kVocabulary, .hidden = 24, .heads = 4, .layers = 3}, config);
  return sized(more, config);
}

DecoderConfig small_gpt2() {
  return small("gpt2", {.inner = 48, .max_positions = 9, .dropout = 0});
}

DecoderConfig small_llama() { return small("llama", {.inner = 32, .key_heads = 2, .head_dim = 6}); }

ParityWork causal_work(const std::string& model, RowsAre rows) {
  const auto bloom = small("bloom");
  if (model == "bloom") {
    return ragged_work(causal(bloom), plain_bloom(bloom), kVocabulary, rows);
  }
  if (model == "gpt2") {
    return ragged_work(causal(small_gpt2()), plain_gpt2(small_gpt2()), kVocabulary, rows);
  }
  return ragged_work(causal(small_llama()), plain_llama(small_llama()), kVocabulary, rows);
}

ParityRow layout(const std::string& strategy, int pipeline, int data, int tensor,
                 int accumulation) {
  ParityRow row{.ranks = pipeline * data * tensor,
                .accumulation = accumulation,
                .pipeline = pipeline,
                .tensor = tensor};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 100;
  return row;
}

// Every strategy over data ranks, and every other axis around one of them.
std::vector<ParityRow> layouts() {
  std::vector<ParityRow> rows{layout("single", 1, 1, 1, 1), layout("single", 1, 1, 1, 3)};
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    rows.push_back(layout(strategy, 1, 2, 1, 2));
    rows.back().parallel.gradient_checkpointing = strategy == "zero3";
  }
  rows.push_back(layout("zero2", 1, 2, 1, 2));
  rows.back().parallel.offload = {.what = Offload::kOptimizer, .step = OffloadStep::kHost};
  rows.push_back(layout("zero1", 2, 2, 1, 3));
  rows.push_back(layout("ddp", 2, 2, 1, 2));
  rows.back().parallel.pipeline = {.schedule = "gpipe", .shared_vocabulary = true};
  rows.back().parallel.gradient_checkpointing = true;
  rows.push_back(layout("fsdp", 2, 1, 1, 4));
  rows.back().parallel.pipeline = {.schedule = "interleaved", .chunks = 2};
  for (const bool sequence_parallel : {false, true}) {
    rows.push_back(layout("zero3", 1, 2, 2, 2));
    rows.back().parallel.sequence_parallel = sequence_parallel;
    rows.push_back(layout("zero1", 2, 1, 2, 2));
    rows.back().parallel.sequence_parallel = sequence_parallel;
  }
  return rows;
}

}  // namespace

TEST_CASE("packed and padded causal rows reproduce each row alone") {
  for (const std::string model : {"bloom", "gpt2", "llama"}) {
    const RankRecord expected = reference(causal_work(model, RowsAre::kPacked));
    for (const RowsAre rows : {RowsAre::kPadded, RowsAre::kPacked}) {
      const ParityWork work = causal_work(model, rows);
      for (const ParityRow& row : layouts()) {
        INFO(model << (rows == RowsAre::kPacked ? " packed" : " padded"));
        check_row(row, work, expected);
      }
    }
  }
}

TEST_CASE("packed classification rows reproduce padded ones") {
  constexpr int64_t kClasses = 3;
  for (const ModelSpec& model :
       {classifier(small("bloom"), kClasses), classifier(small_gpt2(), kClasses),
        classifier(small_llama(), kClasses)}) {
    const auto work_of = [&](RowsAre rows) {
      return ragged_work(model, {}, kVocabulary, rows, kClasses);
    };
    const RankRecord expected = single_run(work_of(RowsAre::kPadded));
    const ParityWork packed = work_of(RowsAre::kPacked);
    for (const ParityRow& row : layouts()) {
      // A classifier has no vocabulary to share.
      if (row.parallel.pipeline.shared_vocabulary) continue;
      INFO(model.name);
      check_row(row, packed, expected);
    }
  }
}

TEST_CASE("rows without padding reproduce padded ones, on both sides") {
  const std::vector<ParityRow> rows{layout("single", 1, 1, 1, 3), layout("zero3", 1, 2, 1, 2),
                                    layout("zero1", 2, 2, 1, 3), layout("fsdp", 1, 2, 2, 2)};
  for (const auto& [padded, free] :
       {std::pair{RowsAre::kPadded, RowsAre::kWithoutPadding},
        std::pair{RowsAre::kPaddedLeft, RowsAre::kLeftWithoutPadding}}) {
    for (const std::string model : {"bloom", "gpt2", "llama"}) {
      // GPT-2's positions depend on the longest row of a micro-batch, so on the layout.
      if (model == "gpt2" && padded == RowsAre::kPaddedLeft) continue;
      INFO(model << (padded == RowsAre::kPadded ? " right" : " left"));
      const RankRecord expected = single_run(causal_work(model, padded));
      for (const ParityRow& row : rows) check_row(row, causal_work(model, free), expected);
    }
    const auto classified = [](RowsAre are) {
      return ragged_work(classifier(small("bloom"), 3), {}, kVocabulary, are, 3);
    };
    const RankRecord expected = single_run(classified(padded));
    for (const ParityRow& row : rows) check_row(row, classified(free), expected);
  }
}

TEST_CASE("packed rows in 16 bits stay within the roundings of each step") {
  for (const std::string model : {"bloom", "gpt2", "llama"}) {
    const ParityWork work = causal_work(model, RowsAre::kPacked);
    for (ParityRow row : {layout("zero2", 1, 2, 1, 2), layout("zero3", 2, 1, 2, 2)}) {
      INFO(model);
      row.parallel.precision.parameter = at::kBFloat16;
      check_16_bit_row(row, work);
    }
  }
}

TEST_CASE("micro-batches without rows add nothing, under every strategy") {
  const auto bloom = small("bloom");
  ParityWork work =
      token_work(causal(bloom), {.vocabulary = kVocabulary, .steps = 3}, plain_bloom(bloom));
  const RankRecord expected = reference(work);
  // All rows go to the last micro-batch of the last data rank.
  work.batches = [global = work.global_batches](size_t step, const ParityRow& row, int data_rank) {
    std::vector<MicroBatch> own;
    for (int m = 0; m < row.accumulation; ++m) {
      const bool all = data_rank + 1 == row.data() && m + 1 == row.accumulation;
      own.push_back(rows_of(global[step], 0, all ? global[step].input_ids.size(0) : 0));
    }
    return own;
  };
  for (const ParityRow& row : layouts()) check_row(row, work, expected);
}
