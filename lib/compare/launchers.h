// SPDX-License-Identifier: MIT
#pragma once
// What starts the ranks of a comparison's rows.
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

// What this build and this host have. A program that is not in PATH is "".
struct LaunchersHere {
  bool mpi = false;   // the MPI transport is built
  bool gpus = false;  // NCCL is built, and there is a GPU
  std::string mpirun, srun, torchrun;
};
LaunchersHere launchers_here();

// A row, as far as the choice of a launcher needs it.
struct RowToLaunch {
  std::string name;
  bool alone = false;    // one rank, or a peer's, which start themselves
  bool on_gpus = false;  // where there are GPUs
};

// asked: a value of --launcher. Returns mpirun, srun, threads or torchrun. Throws
// Error(kInvalidArgument) where `asked` is not here, and where ranks would be threads on the CPU
// beside rows on a GPU.
std::string choose_launcher(const std::string& asked, const LaunchersHere& here,
                            const std::vector<RowToLaunch>& rows);

// The words in front of a program that start it on several ranks; none for threads.
std::vector<std::string> launch_command(const std::string& launcher, const LaunchersHere& here,
                                        const std::string& ranks);

// torchrun ends with 1 whatever its ranks ended with; its summary names the first that failed. As a
// shell has it, 128 + n for signal n. Nothing where the log has no summary.
std::optional<int> exit_code_of_torchrun(const std::string& log);

}  // namespace tessera::programs
