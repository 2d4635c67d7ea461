// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Bootstrap: detects how this process was launched and connects the ranks of its job.
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/launch_info.h"

namespace tessera {

/// Reads the launcher's environment variables. Throws Error(kInvalidArgument) naming those that are
/// missing, out of range or contradictory. With RANK and WORLD_SIZE by hand, local rank and size
/// may be missing: connecting finds them.
LaunchInfo detect_launch();

/// Names of the transports in this build ("local" always; "mpi", "nccl" when built).
std::vector<std::string> available_transports();
/// One transport of this build.
struct TransportInfo {
  std::string name;     ///< "local", "mpi", "nccl" or "tcp"
  std::string library;  ///< "NCCL 2.28.9"; empty for the library's own transports
  /// Why this process, as launched, cannot use it; empty when usable.
  std::string unusable_because;
};
/// Every transport of this build, and whether this process can use it.
std::vector<TransportInfo> describe_transports(const LaunchInfo& launch);

/// Connection between the processes of one job; one per process. Outlives every communicator it
/// makes.
///
/// The control channel is a star of TCP connections to rank 0, authenticated by the job's secret.
/// Rank 0's address comes from the launcher: torchrun's store, MPI, MPICH's process manager, the
/// Slurm step, or MASTER_ADDR and MASTER_PORT. TESSERA_RENDEZVOUS_TIMEOUT_S (120) bounds the wait
/// for all ranks; the error names the missing ones. All communicators end with Error(kUnavailable)
/// when a process dies without conclude(), and when one sends no heartbeat for
/// TESSERA_HEARTBEAT_TIMEOUT_S (45). A busy process still sends heartbeats; one that is stopped,
/// swapped out or cut off does not.
class Bootstrap : public ControlChannel {
 public:
  virtual const LaunchInfo& launch() const = 0;  ///< how this process was launched
  /// Connects all ranks. transport: "auto" (nccl when this rank has a GPU, else mpi, else local),
  /// "local", "mpi" or "nccl". Collective. Throws Error(kInvalidArgument) with the available ones
  /// when the transport is not built or cannot serve the launch, and names two ranks that would
  /// share one GPU.
  virtual std::unique_ptr<Communicator> connect(const std::string& transport) = 0;

  /// Ends every communicator on all ranks with Error(kUnavailable, reason). Callable from any
  /// thread.
  virtual void abort(const std::string& reason) = 0;
  /// Exchanges the ranks' exit statuses, by rank; the last call, collective. status: empty on
  /// success, else as run_job packs it. "?" stands for ranks without an answer 10 s after the first
  /// failure. A failed rank wakes ranks that still wait in an operation.
  virtual std::vector<std::string> conclude(const std::string& status) = 0;
};
/// Connects this process to its job. Collective over the job's processes; throws
/// Error(kUnavailable) with the ranks that are missing.
std::unique_ptr<Bootstrap> make_bootstrap();

}  // namespace tessera
