// SPDX-License-Identifier: MIT
#pragma once
// Rows of the parity table with threads as ranks.
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

// Reference of fp32 rows.
inline RankRecord reference(const ParityWork& work) {
  const RankRecord result = without_key_biases(oracle_run(work));
  CHECK(result.steps.front().clip < 1.0);  // the test needs effective clipping
  return result;
}

// Reference by the strategy "single", for models that the oracle cannot run: hand-written blocks
// without a plain version (classifiers, padding on the left, dropout, tensor-axis-only layers).
// Their blocks have own tests against LibTorch.
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

// All ranks report equal numbers and end with equal bits.
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

// Every rank agrees with the reference, and bit for bit with the others if all report the same.
inline void check_row(const ParityRow& row, const ParityWork& work, const RankRecord& expected,
                      double tolerance = 1e-5) {
  INFO(row.name());
  const auto results = run_row(row, work);
  for (const auto& result : results) {
    CHECK(difference(result, expected, tolerance) == "");
    CHECK(same_numbers(result, results.front()));
  }
}

// 16-bit row: all ranks agree, and rank 0 is within one step's roundings.
inline void check_16_bit_row(const ParityRow& row, const ParityWork& work) {
  INFO(row.name());
  CHECK(oracle_difference(row, work, {.ranks = run_on_threads(row, work, /*visits=*/true)}) == "");
}

// Calls check(dtype, work) in bf16 and, with loss scaling, fp16, for this many steps, each compared
// separately.
inline void in_16_bit(ParityWork work, size_t steps,
                      const std::function<void(at::ScalarType, const ParityWork&)>& check) {
  work.global_batches.resize(steps);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    work.trainer.loss_scaler = {.enabled = dtype == at::kHalf, .initial_scale = 1024};
    check(dtype, work);
  }
}

// Class labels instead of tokens, with every class in every batch.
inline ParityWork with_classes(ParityWork work, int64_t classes) {
  for (size_t i = 0; i < work.global_batches.size(); ++i) {
    MicroBatch& batch = work.global_batches[i];
    const int64_t rows = batch.input_ids.size(0), first = static_cast<int64_t>(i);
    batch.labels = at::arange(first, first + rows).remainder(classes);
    batch = rows_of(batch, 0, rows);
  }
  return work;
}

// Every strategy on two ranks, and around two stages.
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
