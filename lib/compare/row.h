// SPDX-License-Identifier: MIT
#pragma once
// One row of a comparison: a way to do some work, and what became of it.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/compare/parity.h"
#include "lib/compare/work.h"
#include "lib/run/layout.h"

namespace tessera::programs {

enum class Outcome { kFinished, kOutOfMemory, kFailed, kUnavailable };

// The largest batch of a rank that ran, and the smallest that was tried and did not fit.
struct LargestBatch {
  int64_t fits = 0;
  std::optional<int64_t> does_not_fit;
};

struct ComparisonRow {
  int64_t ranks = 1;
  std::string name;                // of its folder, e.g. "zero2-4-pp2"
  std::string peer;                // "": tessera; else whose script runs it
  std::vector<std::string> flags;  // all of the fine-tuning program but its folder
  TrainOptions options;            // with them
  Work work;
  std::shared_ptr<const Prepared> prepared;
  bool own_accumulation = false;  // its line says how many micro-batches a step has

  Outcome outcome = Outcome::kFinished;
  int exit_code = 0;
  std::string message;  // why it did not finish
  double wall_s = 0;    // of all its runs
  std::vector<RunResult> runs;
  StatePlan formula;
  std::optional<LargestBatch> largest;
  std::string compared_with;  // the first row of the same work
  double tolerance = 0;
  std::optional<Parity> parity;  // the worst of its runs; none for the very first

  std::string mark;  // how its work differs from the baseline's

  MeshExtents mesh() const { return mesh_extents(options, static_cast<int>(ranks)); }
  int64_t batch_per_pass() const {  // rows of one micro-batch over all ranks
    return options.training.per_device_train_batch_size * mesh().data;
  }
  bool finished() const { return outcome == Outcome::kFinished && !runs.empty(); }
  std::optional<double> median(const std::string& key) const;  // over its runs
  // Bytes that strategies are compared by: allocated on the GPU, else of the processes together.
  std::optional<double> peak_bytes() const;
  std::string verdict() const;  // reference, PASS, FAIL ..., or what happened instead
  bool failed() const;
};

// (other - row) / other, and (row - other) / other: by table 4 of docs/guides/report.md.
std::optional<double> memory_savings(const ComparisonRow& row, const ComparisonRow& baseline);
std::optional<double> runtime_change(const ComparisonRow& row, const ComparisonRow& baseline);
// Tokens per second and rank over the baseline's: 1 is linear scaling.
std::optional<double> scaling_ratio(const ComparisonRow& row, const ComparisonRow& baseline);

}  // namespace tessera::programs
