// SPDX-License-Identifier: MIT
#pragma once
// Flags that were given a value which nothing of the run reads.
#include <string>
#include <vector>

#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

struct IdleFlag {
  std::string origin;  // of the value
  std::string text;    // "--name value (origin) has no effect here: why"
};

// Such flags get their defaults again, so that config.json says what counts. The library's own
// settings are judged by idle_settings(); throws Error(kInvalidArgument) for one that is refused
// there, and for a number out of its range. world_size: ranks of the job.
std::vector<IdleFlag> reset_idle_flags(FlagSet& flags, const TrainOptions& options,
                                       int64_t world_size);

// Why a flag is read by nothing where all others have their defaults; "": something reads it.
// own: of a program with rows of its own.
std::string why_idle_by_default(const std::string& flag, bool own);

}  // namespace tessera::programs
