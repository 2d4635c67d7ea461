// SPDX-License-Identifier: MIT
#pragma once
// Saving and resuming of a program's run.
#include <optional>
#include <string>

#include "lib/run/run_state.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/communicator.h"

namespace tessera::programs {

// Throws Error(kInvalidArgument) when --resume_from_checkpoint names a missing path.
void check_resume(const TrainOptions& options);

// True if the run resumes in its own directory, whose files then stay.
bool continues_in_place(const TrainOptions& options);

struct Resumed {
  std::string path;
  RunState run;
};

// Loads the strategy's state for --resume_from_checkpoint after attach(). That is the named
// checkpoint; for `auto` and the directory of a run, the newest that loads, and skipped ones are
// logged. Empty: a new run. Collective. Throws Error(kInvalidArgument) when the path holds no
// checkpoint, Error(kDataLoss) when none loads.
std::optional<Resumed> resume(const TrainOptions& options, Communicator& world, Strategy& strategy);

// RunState::fp8_layers of the checkpoint that resume() would try first; "": there is none.
// Collective.
std::string kept_fp8_layers(const TrainOptions& options, Communicator& world);

struct BestOfRun {
  const RunState::Best& step;
  const std::string& run;  // RunState::id
  const std::optional<Resumed>& resumed;
};
// Loads the run's best checkpoint: from --output_dir, else beside the resumed checkpoint. Logs and
// changes nothing if it is missing or another run's. Collective.
void load_best(const BestOfRun& best, const TrainOptions& options, Communicator& world,
               Strategy& strategy);

}  // namespace tessera::programs
