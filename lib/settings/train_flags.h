// SPDX-License-Identifier: MIT
#pragma once
// Flags of the fine-tuning programs and their validation.
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

// Adds the table's settings that `keep` chooses.
void add_flags(FlagSet& flags, TrainOptions& options,
               const std::function<bool(const settings::Setting&)>& keep);
// Adds the layout and precision flags.
void add_strategy_flags(FlagSet& flags, TrainOptions& options);
// Adds all flags of the program. find: meaning of foreign names, such as find_foreign; null:
// unknown.
void add_train_flags(FlagSet& flags, TrainOptions& options, Program program, FindForeign find);

// Lines that --help NAME adds: values, effect of another value, requirements, origin of the name.
std::vector<std::string> facts_of(const std::string& name, Program program);

// True if the options provide something to evaluate on.
bool may_evaluate(const TrainOptions& options, Program program);

// Text of the data options that a file's tokens depend on.
std::string data_recipe(const TrainOptions& options);

// Optimizer steps of the run, and of its warm-up. steps_of() throws Error(kInvalidArgument) when
// --num_train_epochs makes too many.
int64_t steps_of(const TrainingOptions& options, int64_t steps_per_epoch);
int64_t warmup_steps_of(const TrainingOptions& options, int64_t steps);

// Checks of the values alone, without files and ranks: the layout, the run's end, and everything.
// Throw Error(kInvalidArgument).
void validate_layout(const TrainOptions& options);
void validate_ending(const TrainOptions& options, Program program);
// The part of validate_ending() that needs the number of steps.
void check_steps_of_best(const TrainOptions& options, int64_t all_steps);
void validate_options(const TrainOptions& options, Program program);

}  // namespace tessera::programs
