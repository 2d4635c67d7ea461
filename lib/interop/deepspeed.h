// SPDX-License-Identifier: MIT
#pragma once
// --deepspeed FILE: translates a DeepSpeed configuration into flags.
#include <cstdint>
#include <string>

#include "lib/interop/deepspeed_file.h"
#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

// Sets the flags bound to `options` from the file, with "FILE:LINE" as origin, before anything is
// built. "auto" keeps the flag's value. Missing keys keep it too, except for defaults of
// DeepSpeed's version (--deepspeed_defaults). The file's optimizer and scheduler override the
// command line, with a notice. Throws Error(kInvalidArgument) for any other conflict (with both
// places), for findings, and for batch sizes that do not multiply to `world_size` ranks.
void apply_deepspeed(const DeepSpeedFile& file, int64_t world_size, TrainOptions& options,
                     FlagSet& flags);

}  // namespace tessera::programs
