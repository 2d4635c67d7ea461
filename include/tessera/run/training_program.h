// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A program that trains a model of your own as tessera-finetune-* train theirs: the same flags,
/// strategies, metrics, checkpoints, evaluations and exit codes.
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

/// Rows of data that are asked for by their numbers, as of torch::data's get_batch().
struct RowSet {
  int64_t count = 0;  ///< the number of rows
  /// The micro-batch of these rows, on the CPU (make_micro_batch()); the same on every rank that
  /// asks. Called by the thread of a rank, in any order. With in-process ranks (--ranks) several
  /// call it at once.
  std::function<MicroBatch(std::span<const int64_t> rows)> batch = nullptr;
};

/// What a program trains.
struct TrainingTask {
  ModelSpec model;    ///< from_module(), from_sequential(), or blocks of your own
  RowSet train;       ///< rows to train on
  RowSet validation;  ///< without rows there are no evaluations
  /// Names the data, e.g. a file and its hash. Where a checkpoint has another one the weights go on
  /// and the data begins anew.
  std::string data = "";
  OptimizerFactory optimizer = nullptr;   ///< as the flags say unless given
  const TensorSource* weights = nullptr;  ///< pretrained; outlives the run
};

/// A flag of the program's own. The variable has the default, and outlives the run.
struct ProgramFlag {
  std::string name;  ///< without dashes, e.g. "hidden_size"
  /// Where the flag's value is written.
  std::variant<bool*, int64_t*, uint64_t*, double*, std::string*> variable;
  std::string help;  ///< one sentence for --help
};

/// A program of your own.
struct TrainingProgram {
  std::string name, summary = "";  ///< for --help and messages
  /// beside those of docs/reference/flags.md that name no language model
  std::vector<ProgramFlag> flags = {};
  /// Called once a process when the flags are read; torch::manual_seed(--seed) was called before,
  /// so that all processes draw the same weights. What it throws ends the program.
  std::function<TrainingTask()> make;
};

/// The main function. The exit code: 0; of an Error exit_code(); 75 and 130 when a signal stopped
/// the run and a checkpoint is complete.
int run_training(const TrainingProgram& program, int argc, char** argv);

}  // namespace tessera
