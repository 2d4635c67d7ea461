// SPDX-License-Identifier: MIT
// The parity table on in-process ranks: every row must reproduce one rank with the whole global
// batch at once.
#include <ATen/ATen.h>

#include "tests/parity/rows.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParityWork toy_work(bool tied) {
  return token_work(toy_language_model({.tied = tied}), {.rows = 72, .steps = 5});
}

}  // namespace

TEST_CASE("fp32: strategies x ranks x accumulation reproduce the single run") {
  for (bool tied : {true, false}) {
    const ParityWork work = toy_work(tied);
    const RankRecord expected = reference(work);
    REQUIRE(expected.steps.size() == 5);
    CHECK(expected.steps.front().loss > 3.0);
    for (const auto& strategy : kShardingStrategies) {
      for (int ranks : {1, 2, 3, 4, 8}) {
        for (int accumulation : {1, 3}) {
          ParityRow row{.ranks = ranks, .accumulation = accumulation};
          row.parallel.strategy = strategy;
          row.parallel.persistence_threshold = 20;
          check_row(row, work, expected, 1e-5);
        }
      }
    }
  }
}

TEST_CASE("bucket size, overlap, prefetch, persistence and reduction boundary change nothing") {
  const ParityWork work = toy_work(/*tied=*/true);
  const RankRecord expected = reference(work);
  for (const auto& strategy : kShardingStrategies) {
    for (int variant = 0; variant < 6; ++variant) {
      ParityRow row{.ranks = 4, .accumulation = 2};
      row.parallel.strategy = strategy;
      row.parallel.bucket_bytes = variant == 0 ? 1 : variant == 1 ? 3000 : 1 << 20;
      row.parallel.coalesce_bytes = variant % 2 == 0 ? 3000 : 1;
      row.parallel.overlap = variant != 2;
      row.parallel.prefetch_blocks = variant == 3 ? 0 : variant == 4 ? 3 : 1;
      row.parallel.persistence_threshold = variant == 4 ? 0 : variant == 5 ? 1 << 30 : 20;
      row.parallel.reduce_at_boundary = variant == 5;
      check_row(row, work, expected, 1e-5);
    }
  }
}

TEST_CASE("fsdp: units, resharding, hybrid groups and the reduction boundary change nothing") {
  for (bool tied : {true, false}) {
    const ParityWork work = toy_work(tied);
    const RankRecord expected = reference(work);
    for (int accumulation : {1, 2}) {
      for (int variant = 0; variant < 8; ++variant) {
        ParityRow row{.ranks = 4, .accumulation = accumulation};
        row.parallel.strategy = "fsdp";
        row.parallel.unit_numel = variant == 0 || variant == 6 ? 600 : variant == 1 ? 1 << 30 : 0;
        row.parallel.reshard_after_forward = variant != 2 && variant != 3;
        row.parallel.shard_ranks = variant == 3 || variant == 4 ? 2 : variant == 5 ? 1 : 0;
        row.parallel.reduce_at_boundary = variant == 4 || variant == 6;
        row.parallel.overlap = variant != 7;
        check_row(row, work, expected, 1e-5);
      }
    }
  }
}

TEST_CASE("gradient checkpointing changes nothing") {
  const ParityWork work = toy_work(/*tied=*/true);
  const RankRecord expected = reference(work);
  for (const auto& strategy : kShardingStrategies) {
    for (int ranks : {1, 4}) {
      ParityRow row{.ranks = ranks, .accumulation = 2};
      row.parallel.strategy = strategy;
      row.parallel.gradient_checkpointing = true;
      check_row(row, work, expected, 1e-5);
    }
  }
}

TEST_CASE("bf16 and fp16 with fp32 masters: within the roundings of every step") {
  in_16_bit(toy_work(/*tied=*/true), 3, [](at::ScalarType dtype, const ParityWork& work) {
    for (const auto& strategy : kShardingStrategies) {
      for (int ranks : {2, 3}) {
        ParityRow row{.ranks = ranks, .accumulation = 2};
        row.parallel.strategy = strategy;
        row.parallel.precision.parameter = dtype;
        row.parallel.persistence_threshold = 20;
        check_16_bit_row(row, work);
        row.parallel.precision.gradient = at::kFloat;
        check_16_bit_row(row, work);
        row.parallel.precision.reduce = dtype;
        check_16_bit_row(row, work);
      }
    }
  });
}

TEST_CASE("a micro-batch or a rank without any target contributes nothing") {
  ParityWork work = toy_work(/*tied=*/true);
  for (auto& batch : work.global_batches) {
    batch.labels.narrow(0, 0, 24).fill_(kIgnoredLabel);  // rows of the first ranks
    batch = rows_of(batch, 0, batch.input_ids.size(0));
  }
  const RankRecord expected = reference(work);
  for (const auto& strategy : kShardingStrategies) {
    ParityRow row{.ranks = 3, .accumulation = 2};
    row.parallel.strategy = strategy;
    check_row(row, work, expected, 1e-5);
  }
  for (auto& batch : work.global_batches) {
    batch.labels.fill_(kIgnoredLabel);
    batch = rows_of(batch, 0, batch.input_ids.size(0));
  }
  ParityRow row{.ranks = 2};
  row.parallel.strategy = "zero3";
  for (const auto& result : run_on_threads(row, work)) {
    for (const StepRecord& step : result.steps) {
      CHECK(step.loss == 0);
      CHECK(step.norm == 0);
    }
  }
}

TEST_CASE("every rank ends with the same bits") {
  const ParityWork work = toy_work(/*tied=*/true);
  for (const auto& strategy : kShardingStrategies) {
    ParityRow row{.ranks = 4};
    row.parallel.strategy = strategy;
    check_same_bits(row, work);
  }
}
