// SPDX-License-Identifier: MIT
#pragma once
// The checkpoints of a program's run: going on from one, and writing them.
#include <optional>
#include <string>

#include "lib/run/run_state.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/communicator.h"

namespace tessera::programs {

// Throws Error(kInvalidArgument) when --resume_from_checkpoint names a path that is not there.
void check_resume(const TrainOptions& options);

// Whether the run goes on in the directory that it was in: then its files stay.
bool continues_in_place(const TrainOptions& options);

struct Resumed {
  std::string path;
  RunState run;
};

// Fills the strategy from what --resume_from_checkpoint says, after attach(): the checkpoint of
// that path, or the newest that loads, where `auto` and the directory of a run leave it open; what
// is skipped is logged. Nothing: the run begins. Collective. Throws Error(kInvalidArgument) when
// the path holds no checkpoint, Error(kDataLoss) when none loads.
std::optional<Resumed> resume(const TrainOptions& options, Communicator& world, Strategy& strategy);

struct BestOfRun {
  const RunState::Best& step;
  const std::string& run;  // RunState::id
  const std::optional<Resumed>& resumed;
};
// Fills the strategy from the run's best checkpoint: that of --output_dir, or else the one beside
// the checkpoint that was resumed. Where none is there, or it is another run's, nothing changes but
// that this is logged. Collective.
void load_best(const BestOfRun& best, const TrainOptions& options, Communicator& world,
               Strategy& strategy);

}  // namespace tessera::programs
