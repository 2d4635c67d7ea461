// SPDX-License-Identifier: MIT
#pragma once
// tessera-launch: runs mpirun, and restarts it while that may help.
#include <string>
#include <vector>

namespace tessera::programs {

struct LaunchCommand {
  std::string mpirun = "mpirun";
  std::vector<std::string> mpirun_arguments;
  int ranks = 0;  // 0: mpirun's default
  int max_restarts = 3;
  std::vector<std::string> program;  // program and arguments
  bool version = false;              // the version is requested
};

// Throws Error(kInvalidArgument) unless the form is [flags] PROGRAM [arguments]. PROGRAM is empty
// for help or the version.
LaunchCommand parse_launch(const std::vector<std::string>& arguments);

// Arguments of mpirun. A restart resumes from the newest checkpoint unless the program's arguments
// name one.
std::vector<std::string> launch_arguments(const LaunchCommand& command, bool restart);

// True if a restart may succeed: a peer or a process was lost. False for requested ends (75, or
// signals from people) and for errors that would recur (usage, memory, data).
bool worth_restarting(int exit_status);

int run_launch(const std::vector<std::string>& arguments);

}  // namespace tessera::programs
