// SPDX-License-Identifier: MIT
// Dropout depends on micro-batch and block only: every layout with equal micro-batches per data
// rank trains the same model, with recomputation and tensor parallelism too.
#include <ATen/ATen.h>

#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/sized.h"

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

}  // namespace

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
