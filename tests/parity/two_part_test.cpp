// SPDX-License-Identifier: MIT
// A tied table is reduced in two parts ([Note: a table in two parts]): the head's gradient as soon
// as it is complete, and the embedding's rows.
#include "tessera/models/language_model.h"
#include "tests/parity/ragged_work.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 64;

DecoderConfig small() {
  return sized("bloom", {.vocabulary = kVocabulary,
                         .hidden = 32,  // every rank's shard of the table has whole rows
                         .heads = 4,
                         .layers = 3,
                         .initializer_range = 0.1});
}

std::vector<ParityRow> rows() {
  std::vector<ParityRow> all;
  for (const std::string& strategy : kShardingStrategies) {
    for (int ranks : {2, 3, 4}) {
      for (int accumulation : {1, 2}) {
        ParityRow& row = all.emplace_back(ParityRow{.ranks = ranks, .accumulation = accumulation});
        row.parallel.strategy = strategy;
        if (strategy == "zero3") row.parallel.persistence_threshold = 100;
      }
    }
  }
  for (const std::string strategy : {"zero2", "fsdp"}) {
    ParityRow& row = all.emplace_back(ParityRow{.ranks = 4, .accumulation = 2});
    row.parallel.strategy = strategy;
    row.parallel.reduce_at_boundary = true;
  }
  ParityRow& hybrid = all.emplace_back(ParityRow{.ranks = 4, .accumulation = 2});
  hybrid.parallel.strategy = "fsdp";
  hybrid.parallel.shard_ranks = 2;
  ParityRow& offloaded = all.emplace_back(ParityRow{.ranks = 2, .accumulation = 2});
  offloaded.parallel.strategy = "zero1";
  offloaded.parallel.offload.what = Offload::kOptimizer;
  return all;
}

}  // namespace

TEST_CASE("a table in two parts: the numbers of one rank, the same bits on all") {
  const ParityWork work = token_work(
      causal(small()), {.vocabulary = kVocabulary, .rows = 24, .steps = 4}, plain_bloom(small()));
  const RankRecord expected = reference(work);
  for (const ParityRow& row : rows()) {
    check_row(row, work, expected);
    if (row.parallel.strategy == "ddp") check_same_bits(row, work);
  }
}

TEST_CASE("a table in two parts: ranks with unlike numbers of rows") {
  for (const RowsAre kind : {RowsAre::kWithoutPadding, RowsAre::kPacked}) {
    const ParityWork work = ragged_work(causal(small()), plain_bloom(small()), kVocabulary, kind);
    const RankRecord expected = reference(work);
    for (const std::string& strategy : kShardingStrategies) {
      ParityRow row{.ranks = 2, .accumulation = 2};
      row.parallel.strategy = strategy;
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("a table in two parts: overlap and buckets change no bit") {
  const ParityWork work = token_work(
      causal(small()), {.vocabulary = kVocabulary, .rows = 24, .steps = 3}, plain_bloom(small()));
  for (ParityRow row : rows()) {
    INFO(row.name());
    const std::vector<RankRecord> expected = run_row(row, work);
    row.parallel.overlap = false;
    row.parallel.bucket_bytes = 300;
    const std::vector<RankRecord> results = run_row(row, work);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      CHECK(difference(results[rank], expected[rank], 0) == "");
    }
  }
}

TEST_CASE("a table in two parts: 16 bits, within the roundings of every step") {
  const ParityWork work = token_work(
      causal(small()), {.vocabulary = kVocabulary, .rows = 24, .steps = 4}, plain_bloom(small()));
  in_16_bit(work, 3, [](at::ScalarType dtype, const ParityWork& of) {
    for (const std::string& strategy : kShardingStrategies) {
      ParityRow row{.ranks = 2, .accumulation = 2};
      row.parallel.strategy = strategy;
      row.parallel.precision.parameter = dtype;
      check_16_bit_row(row, of);
    }
  });
}
