// SPDX-License-Identifier: MIT
#pragma once
// Rows of the parity table with threads as ranks, for tests.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "tests/parity/oracle_run.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

namespace tessera::testing {

inline std::vector<RankRecord> run_row(const ParityRow& row, const ParityWork& work) {
  std::vector<RankRecord> results = run_on_threads(row, work);
  for (auto& result : results) result = without_key_biases(std::move(result));
  return results;
}

// What fp32 rows must reproduce.
inline RankRecord reference(const ParityWork& work) {
  const RankRecord result = without_key_biases(oracle_run(work));
  CHECK(result.steps.front().clip < 1.0);  // clipping must be active to be tested
  return result;
}

// The same by the library's own strategy "single", for models that the oracle cannot run: their
// blocks are hand-written, and there is no plain version of them (classifiers, padding on the left,
// dropout, layers of the tensor axis alone). Their blocks have tests of their own against LibTorch.
inline RankRecord single_run(const ParityWork& work) {
  const RankRecord result = run_row({}, work).front();
  CHECK(result.steps.front().clip < 1.0);
  return result;
}

const std::vector<std::string> kShardingStrategies = {"ddp", "zero1", "zero2", "zero3", "fsdp"};

inline bool same_numbers(const RankRecord& a, const RankRecord& b) {
  return series(a, &StepRecord::loss) == series(b, &StepRecord::loss) &&
         series(a, &StepRecord::norm) == series(b, &StepRecord::norm);
}

// All ranks report the same numbers and end with the same bits.
inline void check_same_bits(const ParityRow& row, const ParityWork& work) {
  INFO(row.name());
  const auto results = run_row(row, work);
  for (const RankRecord& result : results) {
    CHECK(same_numbers(result, results.front()));
    for (const auto& [name, value] : result.final) {
      CHECK(value.equal(results.front().final.at(name)));
    }
  }
}

// Every rank agrees with the reference, and with the others to the bit where all report the same.
inline void check_row(const ParityRow& row, const ParityWork& work, const RankRecord& expected,
                      double tolerance = 1e-5) {
  INFO(row.name());
  const auto results = run_row(row, work);
  for (const auto& result : results) {
    CHECK(difference(result, expected, tolerance) == "");
    CHECK(same_numbers(result, results.front()));
  }
}

// In 16 bits: every rank shows the same, and rank 0 what the roundings of one step allow.
inline void check_16_bit_row(const ParityRow& row, const ParityWork& work) {
  INFO(row.name());
  CHECK(oracle_difference(row, work, {.ranks = run_on_threads(row, work, /*visits=*/true)}) == "");
}

// check(dtype, work) in bf16 and, with loss scaling, in fp16, for so many steps: each is compared
// for itself.
inline void in_16_bit(ParityWork work, size_t steps,
                      const std::function<void(at::ScalarType, const ParityWork&)>& check) {
  work.global_batches.resize(steps);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    work.trainer.loss_scaler = {.enabled = dtype == at::kHalf, .initial_scale = 1024};
    check(dtype, work);
  }
}

// Labels for a classifier in place of tokens: every class in every batch.
inline ParityWork with_classes(ParityWork work, int64_t classes) {
  for (size_t i = 0; i < work.global_batches.size(); ++i) {
    MicroBatch& batch = work.global_batches[i];
    const int64_t rows = batch.input_ids.size(0), first = static_cast<int64_t>(i);
    batch.labels = at::arange(first, first + rows).remainder(classes);
    batch = rows_of(batch, 0, rows);
  }
  return work;
}

// Every strategy on two ranks, and the same around two stages.
inline std::vector<ParityRow> rows_of_strategies(int64_t persistence_threshold,
                                                 bool checkpointing_in_stages) {
  std::vector<ParityRow> rows;
  for (const std::string& strategy : kShardingStrategies) {
    ParityRow row{.ranks = 2, .accumulation = 2};
    row.parallel.strategy = strategy;
    row.parallel.persistence_threshold = persistence_threshold;
    rows.push_back(row);
    row.parallel.gradient_checkpointing = checkpointing_in_stages;
    row.ranks = 4;
    row.pipeline = 2;
    rows.push_back(row);
  }
  return rows;
}

inline ParityRow tensor_row(const std::string& strategy, int data, int tensor) {
  ParityRow row{.ranks = data * tensor, .tensor = tensor};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 100;
  return row;
}

}  // namespace tessera::testing
