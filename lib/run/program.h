// SPDX-License-Identifier: MIT
#pragma once
// Main function of the training programs, and first steps of programs with ranks.
#include <functional>
#include <memory>
#include <string>

#include "lib/run/run_task.h"
#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

bool speaks_first();  // true in the process that prints for all
// Applies the flags for LibTorch's arithmetic to the whole process.
void set_numerics(const TrainOptions& options);
// Throws Error(kInvalidArgument) when --ranks is given under a launcher that has started ranks.
void check_ranks(const TrainOptions& options);

// Differences between the training programs.
struct ProgramKind {
  Program program;
  std::string name, summary, example;
  std::function<void(FlagSet&)> add_own_flags;
  // Called once per process, before anything is connected or written.
  std::function<std::unique_ptr<RunTask>(const TrainOptions&)> make_task;
};
// The programs that fine-tune a language model.
ProgramKind finetune(Program program, const std::string& name, const std::string& summary);

// Main function; returns the exit code.
int run_program(const ProgramKind& kind, int argc, char** argv);

}  // namespace tessera::programs
