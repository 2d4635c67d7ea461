// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Finds out how this process was launched and connects the ranks.
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/launch_info.h"

namespace tessera {

/// Throws Error(kInvalidArgument) naming the variables that are missing, are no number in range, or
/// contradict each other. Local rank and size by hand may be left out: they are then found when the
/// ranks connect.
LaunchInfo detect_launch();

/// Names of the transports in this build ("local" always; "mpi", "nccl" when built).
std::vector<std::string> available_transports();
/// One transport of this build.
struct TransportInfo {
  std::string name;              ///< "local", "mpi", "nccl" or "tcp"
  std::string library;           ///< "NCCL 2.28.9"; empty for a transport of this library's own
  std::string unusable_because;  ///< by this process as it was launched; empty when it is usable
};
/// Every transport of this build, with why this process cannot use it.
std::vector<TransportInfo> describe_transports(const LaunchInfo& launch);

/// Connects the processes of one job; one per process, outlives every communicator it makes.
///
/// The control channel is a star of TCP connections to rank 0, where its ranks prove to each other
/// that they know the job's secret. How they learn where rank 0 listens depends on the launcher:
/// torchrun's store, MPI, MPICH's process manager, the Slurm step, or MASTER_ADDR and MASTER_PORT.
/// TESSERA_RENDEZVOUS_TIMEOUT_S (120) bounds the wait for all ranks; the error names the missing
/// ones. A process that ends without a word ends every communicator of the others with
/// Error(kUnavailable), and so does one that is silent for TESSERA_HEARTBEAT_TIMEOUT_S (45) because
/// it is stopped, swapped out or cut off; one that computes answers all the time. One that an
/// exception destroys before conclude() ends them too.
class Bootstrap : public ControlChannel {
 public:
  virtual const LaunchInfo& launch() const = 0;  ///< how this process was launched
  /// transport: "auto" (nccl when this rank has a GPU, else mpi, else local), "local", "mpi" or
  /// "nccl". Collective. Throws Error(kInvalidArgument) with the available ones when the transport
  /// is not built or cannot serve the launch, and names two ranks that would share one GPU.
  virtual std::unique_ptr<Communicator> connect(const std::string& transport) = 0;

  /// Ends every communicator on all ranks with Error(kUnavailable, reason). Any thread.
  virtual void abort(const std::string& reason) = 0;
  /// Last call, collective: tells every rank how each one ended. status is empty when this one
  /// ended well, else as run_job packs it; "?" stands for ranks that did not answer within 10 s
  /// after the first failure. Wakes ranks that still wait in an operation when this one failed.
  virtual std::vector<std::string> conclude(const std::string& status) = 0;
};
/// Collective over the processes of the job; throws Error(kUnavailable) with the ranks that are
/// missing.
std::unique_ptr<Bootstrap> make_bootstrap();

}  // namespace tessera
