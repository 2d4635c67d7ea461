// SPDX-License-Identifier: MIT
#pragma once
// --deepspeed FILE: what a DeepSpeed configuration says, as values of our flags.
#include <cstdint>
#include <string>

#include "lib/interop/deepspeed_file.h"
#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

// Sets the flags bound to `options` from the file, with "FILE:LINE" as their origin, before
// anything is built. "auto" takes the flag's value; what the file leaves out stays, but for the
// defaults of DeepSpeed's version (--deepspeed_defaults). Optimizer and scheduler of the file win
// over the command line, with a notice; anything else that both say differently is an error with
// both places, as are findings and batch sizes that do not multiply to `world_size` ranks. Throws
// Error(kInvalidArgument).
void apply_deepspeed(const DeepSpeedFile& file, int64_t world_size, TrainOptions& options,
                     FlagSet& flags);

}  // namespace tessera::programs
