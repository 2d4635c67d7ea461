// SPDX-License-Identifier: MIT
// Pipelines whose stages share embedding and head.
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 67;  // not divisible by any number of stages

Sizes sizes(int64_t layers) {
  return {.vocabulary = kVocabulary,
          .hidden = 32,
          .heads = 4,
          .layers = layers,
          .inner = 64,
          .initializer_range = 0.1};
}

DecoderConfig gpt2(double dropout) {
  Sizes all = sizes(3);
  all.max_positions = 16;
  all.dropout = dropout;
  return sized("gpt2", all);
}

DecoderConfig llama() {
  Sizes all = sizes(3);
  all.key_heads = 2;
  all.head_dim = 8;
  return sized("llama", all);
}

ParityWork work_of(ModelSpec model, PlainForward forward = {}, int64_t rows = 24,
                   int64_t sequence = 4) {
  return token_work(std::move(model),
                    {.vocabulary = kVocabulary,
                     .rows = rows,
                     .sequence = sequence,
                     .steps = 3,
                     .first_seed = 500},
                    std::move(forward));
}

ParityWork bloom_work(bool tied, int64_t layers = 4, int64_t rows = 24, int64_t sequence = 4) {
  auto config = sized("bloom", sizes(layers));
  config.tied_head = tied;
  return work_of(causal(config), plain_bloom(config), rows, sequence);
}

ParityRow make_row(const std::string& strategy, int stages, int data, int micro_batches,
                   const std::string& schedule = "1f1b") {
  ParityRow row{.ranks = stages * data, .accumulation = micro_batches, .pipeline = stages};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 100;
  row.parallel.pipeline = {.schedule = schedule, .shared_vocabulary = true};
  return row;
}

constexpr double kTolerance = 1e-5;
const std::vector<std::string> kSchedules = {"gpipe", "1f1b"};

}  // namespace

TEST_CASE("stages that share the vocabulary reproduce the single run, with tied tables and not") {
  for (bool tied : {true, false}) {
    const ParityWork work = bloom_work(tied);
    const RankRecord expected = reference(work);
    for (const auto& schedule : kSchedules) {
      for (const auto& strategy : kShardingStrategies) {
        if (!tied && strategy != "ddp" && strategy != "zero3") continue;
        for (int stages : {2, 3, 4}) {
          const int data = tied && strategy != "zero2" ? 2 : 1;
          const int micro_batches = stages == 2 ? 6 : stages == 3 ? 4 : 2;
          check_row(make_row(strategy, stages, data, micro_batches, schedule), work, expected,
                    kTolerance);
        }
      }
    }
  }
}

TEST_CASE("a shared vocabulary with any number of micro-batches") {
  const ParityWork even = bloom_work(true), odd = bloom_work(true, 4, 35, 3);
  const RankRecord of_even = reference(even), of_odd = reference(odd);
  for (const auto& schedule : kSchedules) {
    for (int stages : {2, 3, 4}) {
      for (int micro_batches = 1; micro_batches <= 8; ++micro_batches) {
        const bool divides = 24 % micro_batches == 0;
        check_row(make_row("single", stages, 1, micro_batches, schedule), divides ? even : odd,
                  divides ? of_even : of_odd, kTolerance);
      }
    }
  }
}

TEST_CASE("a shared vocabulary of GPT-2, with dropout, and of Llama") {
  for (const ParityWork& work : {work_of(causal(gpt2(0.0)), plain_gpt2(gpt2(0.0))),
                                 work_of(causal(llama()), plain_llama(llama()))}) {
    const RankRecord expected = reference(work);
    check_row(make_row("zero1", 3, 1, 4), work, expected, kTolerance);
    check_row(make_row("zero3", 2, 2, 3, "gpipe"), work, expected, kTolerance);
  }
  // Dropout depends on the micro-batch, so the reference has as many.
  const ParityWork work = work_of(causal(gpt2(0.2)));
  ParityRow alone{.accumulation = 4};
  const RankRecord expected = run_row(alone, work).front();
  for (const auto& schedule : kSchedules) {
    ParityRow row = make_row("fsdp", 3, 1, 4, schedule);
    check_row(row, work, expected, kTolerance);
    row.parallel.gradient_checkpointing = true;
    check_row(row, work, expected, kTolerance);
  }
}

TEST_CASE("a classifier's embedding is shared, its small head is run by every stage") {
  const auto config = sized("bloom", sizes(4));
  const ParityWork work = with_classes(work_of(classifier(config, 3)), 3);
  const RankRecord expected = single_run(work);
  REQUIRE(expected.evaluations.back().counters.size() == 1);
  check_row(make_row("zero1", 3, 1, 4), work, expected, kTolerance);
  check_row(make_row("zero3", 2, 2, 3, "gpipe"), work, expected, kTolerance);
}

TEST_CASE("a shared vocabulary with recomputation, units, hybrid groups and without overlap") {
  const ParityWork work = bloom_work(true, 5);
  const RankRecord expected = reference(work);
  for (const auto& schedule : kSchedules) {
    for (const auto& strategy : kShardingStrategies) {
      ParityRow row = make_row(strategy, 2, 2, 3, schedule);
      row.parallel.gradient_checkpointing = true;
      check_row(row, work, expected, kTolerance);
      row.parallel.gradient_checkpointing = false;
      row.parallel.overlap = false;
      check_row(row, work, expected, kTolerance);
      row.parallel.overlap = true;
      row.parallel.bucket_bytes = 1;
      row.parallel.prefetch_blocks = 3;
      row.parallel.reduce_at_boundary = true;
      check_row(row, work, expected, kTolerance);
    }
    for (int variant = 0; variant < 4; ++variant) {
      ParityRow row = make_row("fsdp", 2, variant == 3 ? 4 : 2, 3, schedule);
      row.parallel.unit_numel = variant == 0 ? 1 << 30 : variant == 1 ? 20'000 : 0;
      row.parallel.reshard_after_forward = variant != 2;
      if (variant == 3) row.parallel.shard_ranks = 2;
      check_row(row, work, expected, kTolerance);
    }
  }
}

TEST_CASE("a shared vocabulary whose state lives in host memory") {
  const ParityWork work = bloom_work(true);
  const RankRecord expected = reference(work);
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    for (auto what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      const bool whole = strategy == "zero1" || strategy == "zero2";
      if (whole && what == Offload::kOptimizerAndParameters) continue;
      for (auto step : {OffloadStep::kHost, OffloadStep::kDevice}) {
        ParityRow row = make_row(strategy, 2, 2, 3);
        row.parallel.offload = {.what = what, .step = step, .pin_memory = false};
        check_row(row, work, expected, kTolerance);
      }
    }
  }
}

TEST_CASE("a shared vocabulary in 16 bit, with loss scaling in fp16") {
  in_16_bit(bloom_work(true), 2, [](at::ScalarType dtype, const ParityWork& work) {
    for (const auto& strategy : kShardingStrategies) {
      const std::string schedule = strategy == "zero1" || strategy == "fsdp" ? "gpipe" : "1f1b";
      ParityRow row = make_row(strategy, 3, 2, 3, schedule);
      row.parallel.precision.parameter = dtype;
      check_16_bit_row(row, work);
      row.parallel.precision.gradient = at::kFloat;
      check_16_bit_row(row, work);
    }
  });
}

TEST_CASE("a shared vocabulary and micro-batches without any target") {
  ParityWork work = bloom_work(true);
  for (auto& batch : work.global_batches) {
    batch.labels.narrow(0, 0, 8).fill_(kIgnoredLabel);  // of the first micro-batches
    batch = rows_of(batch, 0, batch.input_ids.size(0));
  }
  const RankRecord expected = reference(work);
  for (const auto& schedule : kSchedules) {
    check_row(make_row("zero1", 2, 2, 6, schedule), work, expected, kTolerance);
    check_row(make_row("fsdp", 4, 1, 6, schedule), work, expected, kTolerance);
  }
}

TEST_CASE("every stage of a shared vocabulary ends with the same bits") {
  const ParityWork work = bloom_work(true);
  for (const auto& strategy : kShardingStrategies) {
    check_same_bits(make_row(strategy, 3, 2, 4), work);
  }
}
