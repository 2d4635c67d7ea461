// SPDX-License-Identifier: MIT
#pragma once
// Recovery test before a run: the cost of its checkpoints, and whether they load.
#include <string>
#include <utility>
#include <vector>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

// Runs a few steps as child processes with the run's ranks, data and layout: trains, saves, kills a
// rank, resumes, and resumes in another layout. Prints the times, and the save interval that costs
// 1 %. Works in <output_dir>/rehearsal, deleted after success. Called by every rank's process;
// returns the exit code. Errors: the run's own if it fails, 4 if it does not resume correctly.
int recovery_test(const FlagSet& flags, const TrainOptions& options);

// Flags and values of the second layout: all ranks shard the data axis, which needs the least
// memory, with the same global batch.
std::vector<std::pair<std::string, std::string>> other_layout(const TrainOptions& options,
                                                              int world_size);

}  // namespace tessera::programs
