// SPDX-License-Identifier: MIT
#pragma once
// The flags of the fine-tuning programs, and what is wrong with their values.
#include <functional>
#include <string>

#include "lib/settings/flags.h"
#include "lib/settings/table.h"
#include "tessera/data/dataset.h"

namespace tessera::programs {

using tessera::Program;
using tessera::TrainOptions;

inline Task task_of(Program program) {
  return program == Program::kClassification ? Task::kClassification : Task::kCausal;
}

// Those of the table that `keep` chooses.
void add_flags(FlagSet& flags, TrainOptions& options,
               const std::function<bool(const settings::Setting&)>& keep);
// How the model is spread, and in which precision.
void add_strategy_flags(FlagSet& flags, TrainOptions& options);
// All of the program's.
// find: what names of others mean, e.g. find_foreign; null: they are unknown.
void add_train_flags(FlagSet& flags, TrainOptions& options, Program program, FindForeign find);

// What --help NAME adds: values, what another one changes, what it needs, where the name is from.
std::vector<std::string> facts_of(const std::string& name, Program program);

// Whether there is something to evaluate on, as far as the options say.
bool may_evaluate(const TrainOptions& options, Program program);

// The data options that a file's tokens depend on, as text.
std::string data_recipe(const TrainOptions& options);

// Optimizer steps of the run; of its warm-up, when it has so many. steps_of() throws
// Error(kInvalidArgument) when --num_train_epochs makes too many.
int64_t steps_of(const TrainingOptions& options, int64_t steps_per_epoch);
int64_t warmup_steps_of(const TrainingOptions& options, int64_t steps);

// Everything that can be said from the values alone, without files and ranks: of the strategy and
// the number of ranks, of how the run ends, and of all. Throws Error(kInvalidArgument).
void validate_layout(const TrainOptions& options);
void validate_ending(const TrainOptions& options, Program program);
// Of validate_ending(), what needs the number of steps.
void check_steps_of_best(const TrainOptions& options, int64_t all_steps);
void validate_options(const TrainOptions& options, Program program);

}  // namespace tessera::programs
