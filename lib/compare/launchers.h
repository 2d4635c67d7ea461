// SPDX-License-Identifier: MIT
#pragma once
// Choice of the launcher for a comparison's rows.
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

// Abilities of this build and host. Programs missing from PATH are "".
struct LaunchersHere {
  bool mpi = false;   // MPI transport is built in
  bool gpus = false;  // NCCL is built in, and there is a GPU
  std::string mpirun, srun, torchrun;
};
LaunchersHere launchers_here();

// A row's properties that the choice depends on.
struct RowToLaunch {
  std::string name;
  bool alone = false;    // one rank, or a peer, which starts itself
  bool on_gpus = false;  // uses GPUs
};

// asked: value of --launcher. Returns mpirun, srun, threads or torchrun. Throws
// Error(kInvalidArgument) when `asked` is unavailable, or when CPU ranks would be threads while
// other rows use a GPU.
std::string choose_launcher(const std::string& asked, const LaunchersHere& here,
                            const std::vector<RowToLaunch>& rows);

// Command prefix that starts a program on several ranks; empty for threads.
std::vector<std::string> launch_command(const std::string& launcher, const LaunchersHere& here,
                                        const std::string& ranks);

// Exit code of the first failed rank in torchrun's summary, as in a shell (128 + n for signal n),
// since torchrun itself exits with 1. Empty if the log has no summary.
std::optional<int> exit_code_of_torchrun(const std::string& log);

}  // namespace tessera::programs
