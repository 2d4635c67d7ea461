// SPDX-License-Identifier: MIT
#pragma once
// The main function of the programs that train, and what programs with ranks begin with.
#include <functional>
#include <memory>
#include <string>

#include "lib/run/run_task.h"
#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

bool speaks_first();  // whether this process is the one to print what all would say
// What the flags say about LibTorch's arithmetic, for the whole process.
void set_numerics(const TrainOptions& options);
// Throws Error(kInvalidArgument) when --ranks makes ranks that a launcher has started already.
void check_ranks(const TrainOptions& options);

// What differs between the programs that train.
struct ProgramKind {
  Program program;
  std::string name, summary, example;
  std::function<void(FlagSet&)> add_own_flags;
  // Once a process, before anything is connected or written.
  std::function<std::unique_ptr<RunTask>(const TrainOptions&)> make_task;
};
// The programs that fine-tune a language model.
ProgramKind finetune(Program program, const std::string& name, const std::string& summary);

// The main function. Returns the exit code.
int run_program(const ProgramKind& kind, int argc, char** argv);

}  // namespace tessera::programs
