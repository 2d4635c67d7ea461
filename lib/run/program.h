// SPDX-License-Identifier: MIT
#pragma once
// The main function of the fine-tuning programs, and what programs with ranks begin with.
#include <string>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

bool speaks_first();  // whether this process is the one to print what all would say
// What the flags say about LibTorch's arithmetic, for the whole process.
void set_numerics(const TrainOptions& options);
// Throws Error(kInvalidArgument) when --ranks makes ranks that a launcher has started already.
void check_ranks(const TrainOptions& options);

// Returns the exit code.
int run_finetune(Program program, const std::string& name, const std::string& summary, int argc,
                 char** argv);

}  // namespace tessera::programs
