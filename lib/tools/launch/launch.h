// SPDX-License-Identifier: MIT
#pragma once
// tessera-launch: mpirun again and again, as long as that may help.
#include <string>
#include <vector>

namespace tessera::programs {

struct LaunchCommand {
  std::string mpirun = "mpirun";
  std::vector<std::string> mpirun_arguments;
  int ranks = 0;  // 0: as mpirun finds
  int max_restarts = 3;
  std::vector<std::string> program;  // and its arguments
  bool version = false;              // was asked for
};

// Throws Error(kInvalidArgument) for anything else than [flags] PROGRAM [arguments]; PROGRAM is
// empty when help or the version was asked for.
LaunchCommand parse_launch(const std::vector<std::string>& arguments);

// What mpirun is called with. A restart goes on from the newest checkpoint, unless the arguments
// say from where.
std::vector<std::string> launch_arguments(const LaunchCommand& command, bool restart);

// Whether the same command may end otherwise: a peer or a process was lost. Not what was asked for
// (75, or a signal that people send), and not what would come again (usage, memory, data).
bool worth_restarting(int exit_status);

int run_launch(const std::vector<std::string>& arguments);

}  // namespace tessera::programs
