// SPDX-License-Identifier: MIT
#pragma once
// Main function of the fine-tuning programs, and first steps of programs with ranks.
#include <string>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

bool speaks_first();  // true in the process that prints for all
// Applies the flags for LibTorch's arithmetic to the whole process.
void set_numerics(const TrainOptions& options);
// Throws Error(kInvalidArgument) when --ranks is given under a launcher that has started ranks.
void check_ranks(const TrainOptions& options);

// Returns the exit code.
int run_finetune(Program program, const std::string& name, const std::string& summary, int argc,
                 char** argv);

}  // namespace tessera::programs
