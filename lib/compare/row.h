// SPDX-License-Identifier: MIT
#pragma once
// One row of a comparison: a configuration and its results.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/compare/parity.h"
#include "lib/report/run.h"
#include "lib/run/layout.h"
#include "lib/settings/flags.h"

namespace tessera::programs {

using report::RunOutcome;

// --- Work of a row, independent of its layout: only rows of the same work must have equal numbers.
// Every flag that changes a run's numbers, by name. Layout, micro-batches, packing and output are
// left out. settle() adds "global_batch_size", the rows per optimizer step.
using Work = std::map<std::string, std::string>;

Work work_of(const FlagSet& flags);

// Differences of two rows' work, "dtype bf16, not fp32; global_batch_size 16, not 8"; "" for none.
std::string difference(const Work& work, const Work& other);

// Largest batch per rank that ran, and the smallest tried that did not fit.
struct LargestBatch {
  int64_t fits = 0;
  std::optional<int64_t> does_not_fit;
};

struct ComparisonRow {
  int64_t ranks = 1;
  std::string name;                // of its folder, such as "zero2-4-pp2"
  std::string peer;                // "": tessera; else the peer whose script runs it
  std::vector<std::string> flags;  // all flags of the fine-tuning program except its folder
  TrainOptions options;            // the parsed flags
  Work work;
  std::shared_ptr<const Prepared> prepared;
  bool own_accumulation = false;  // its line sets the number of micro-batches per step

  RunOutcome outcome = RunOutcome::kFinished;
  int exit_code = 0;
  std::string message;  // why it did not finish
  double wall_s = 0;    // of all its runs
  std::vector<RunResult> runs;
  StateMemory formula;
  std::optional<LargestBatch> largest;
  std::string compared_with;  // the first row of the same work
  double tolerance = 0;
  std::optional<Parity> parity;  // worst of its runs; empty for the very first

  std::string mark;  // letters for differences of its work from the baseline's

  MeshExtents mesh() const { return mesh_extents(options, static_cast<int>(ranks)); }
  int64_t batch_per_pass() const {  // rows of one micro-batch over all ranks
    return options.training.per_device_train_batch_size * mesh().data;
  }
  bool finished() const { return outcome == RunOutcome::kFinished && !runs.empty(); }
  std::optional<double> median(const std::string& key) const;  // over its runs
  // Bytes for comparing strategies: allocated on the GPU, else resident in all processes.
  std::optional<double> peak_bytes() const;
  std::string verdict() const;  // reference, PASS, FAIL ..., or the failure
  bool failed() const;
};

// (other - row) / other and (row - other) / other, as in table 4 of docs/guides/report.md.
std::optional<double> memory_savings(const ComparisonRow& row, const ComparisonRow& baseline);
std::optional<double> runtime_change(const ComparisonRow& row, const ComparisonRow& baseline);
// Tokens per second and rank relative to the baseline; 1 is linear scaling.
std::optional<double> scaling_ratio(const ComparisonRow& row, const ComparisonRow& baseline);

}  // namespace tessera::programs
