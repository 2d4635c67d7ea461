// SPDX-License-Identifier: MIT
#pragma once
// Context of a run's parts on one rank.
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
  DirectoryLock* output_lock;  // lock of --output_dir; null: this process does not write
  Communicator& world;
  const LaunchInfo& launch;
  ControlChannel& control;
  const StopSignals* signals = nullptr;  // null: signals end the process

  const TrainOptions& options() const { return task.options(); }
  bool reports() const { return world.rank() == 0; }
  bool on_gpu() const { return !world.device().is_cpu(); }
};

// Maximum over ranks of each value. Collective.
std::vector<int64_t> largest_over_ranks(ControlChannel& control,
                                        const std::vector<int64_t>& values);

}  // namespace tessera::programs
