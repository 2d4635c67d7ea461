// SPDX-License-Identifier: MIT
#pragma once
// Whether a run would survive: what its checkpoints cost and whether they load, before it begins.
#include <string>
#include <utility>
#include <vector>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

// A few steps of the run as processes of their own, with its ranks, data and layout: trains, saves,
// kills a rank, goes on from the checkpoint, goes on under another layout, and prints what that
// took and the interval between saves that costs 1 %. Works in <output_dir>/rehearsal, which is
// removed when all went well. Called by the process of every rank; returns the exit code. Errors:
// of the run's own kind when it fails by itself, 4 when it does not go on as it was.
int rehearse(const FlagSet& flags, const TrainOptions& options);

// The layout under which a rehearsal loads the checkpoint too: flags and their values. All ranks
// shard the data axis, which needs the least memory, at the same global batch.
std::vector<std::pair<std::string, std::string>> other_layout(const TrainOptions& options,
                                                              int world_size);

}  // namespace tessera::programs
