// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Training programs for custom models, with the flags, strategies, metrics, checkpoints,
/// evaluations and exit codes of tessera-finetune-*.
///   int main(int argc, char** argv) {
///     return tessera::run_training({.name = "mine", .make = [] { return my_task(); }}, argc,
///     argv);
///   }
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Rows of data, accessed by index, like torch::data's get_batch().
struct RowSet {
  int64_t count = 0;  ///< the number of rows
  /// Makes the micro-batch of these rows, on the CPU (make_micro_batch()), equal on every rank.
  /// Called by a rank's thread, in any order; concurrently with in-process ranks (--ranks).
  std::function<MicroBatch(std::span<const int64_t> rows)> batch = nullptr;
};

/// Model and data of a program.
struct TrainingTask {
  ModelSpec model;    ///< from_module(), from_sequential(), or custom blocks
  RowSet train;       ///< rows to train on
  RowSet validation;  ///< rows for evaluations; empty: none
  /// Identifies the data, e.g. a file and its hash. If a checkpoint has another one, weights
  /// continue and the data starts over.
  std::string data = "";
  OptimizerFactory optimizer = nullptr;   ///< null: by the flags
  const TensorSource* weights = nullptr;  ///< pretrained weights; outlives the run
};

/// A custom flag. The variable holds the default, and outlives the run.
struct ProgramFlag {
  std::string name;  ///< without dashes, e.g. "hidden_size"
  /// Variable that receives the value.
  std::variant<bool*, int64_t*, uint64_t*, double*, std::string*> variable;
  std::string help;  ///< one sentence for --help
};

/// A custom training program.
struct TrainingProgram {
  std::string name, summary = "";  ///< for --help and messages
  /// Flags beside those of docs/reference/flags.md for any model.
  std::vector<ProgramFlag> flags = {};
  /// Called once per process after parsing flags and torch::manual_seed(--seed), so that all
  /// processes draw the same weights. Its exceptions end the program.
  std::function<TrainingTask()> make;
};

/// Main function; returns the exit code: 0; exit_code() of an Error; 75 or 130 when a signal
/// stopped the run and a checkpoint is complete.
int run_training(const TrainingProgram& program, int argc, char** argv);

}  // namespace tessera
