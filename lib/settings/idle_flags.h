// SPDX-License-Identifier: MIT
#pragma once
// Flags with values that nothing in the run reads.
#include <string>
#include <vector>

#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

struct IdleFlag {
  std::string origin;  // origin of the value
  std::string text;    // "--name value (origin) has no effect here: why"
};

// Resets idle flags to their defaults, so that config.json shows effective values. idle_settings()
// judges the library's own settings. Throws Error(kInvalidArgument) for a setting that it rejects,
// and for a number out of range. world_size: ranks of the job.
std::vector<IdleFlag> reset_idle_flags(FlagSet& flags, const TrainOptions& options,
                                       int64_t world_size);

// Why nothing reads a flag while all others have their defaults; "": it is read. own: for a program
// with rows of its own.
std::string why_idle_by_default(const std::string& flag, bool own);

}  // namespace tessera::programs
