#pragma once
// Finds out how this process was launched and connects the ranks.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

// What the environment says: Open MPI, Slurm, torchrun-style variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), or one rank.
struct LaunchInfo {
  std::string launcher = "none";  // "mpirun", "srun", "torchrun" or "none"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
};
LaunchInfo detect_launch();

// Names of the transports in this build ("local" always; "mpi", "nccl" when built).
std::vector<std::string> available_transports();

// Connects the processes of one job; one per process, outlives every communicator it makes. The control channel runs over MPI under mpirun and
// over a TCP rendezvous otherwise; it works on the host and carries small byte strings only.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual const LaunchInfo& launch() const = 0;
  // Every rank's bytes, by rank. Collective.
  virtual std::vector<std::string> exchange(const std::string& bytes) = 0;
  // transport: "auto" (nccl when this rank has a GPU, else mpi, else local), "local", "mpi" or "nccl". Throws Error(kInvalidArgument) with the available
  // ones when the transport is not built or cannot serve the launch.
  virtual std::unique_ptr<Communicator> connect(const std::string& transport) = 0;
};
std::unique_ptr<Bootstrap> make_bootstrap();

// Throws the same Error(kInvalidArgument) on every rank when the ranks passed different texts; what names the text in the message.
void require_same_on_all_ranks(Bootstrap& bootstrap, const std::string& what, const std::string& text);

}  // namespace tessera
