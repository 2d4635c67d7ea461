// SPDX-License-Identifier: MIT
#pragma once
// What every part of a run is given on one rank.
#include <string>
#include <vector>

#include "lib/checkpoint/directory_lock.h"
#include "lib/run/run_task.h"
#include "lib/settings/flags.h"
#include "tessera/comm/launch.h"
#include "tessera/train/stop_signal.h"

namespace tessera::programs {

struct RunContext {
  const RunTask& task;
  const FlagSet& flags;
  const std::vector<std::string>& argv;
  DirectoryLock* output_lock;  // of --output_dir; null: not the process that writes
  Communicator& world;
  const LaunchInfo& launch;
  ControlChannel& control;
  const StopSignals* signals = nullptr;  // null: they end the process

  const TrainOptions& options() const { return task.options(); }
  bool reports() const { return world.rank() == 0; }
  bool on_gpu() const { return !world.device().is_cpu(); }
};

// The largest of any rank, of every value. Collective.
std::vector<int64_t> largest_over_ranks(ControlChannel& control,
                                        const std::vector<int64_t>& values);

}  // namespace tessera::programs
