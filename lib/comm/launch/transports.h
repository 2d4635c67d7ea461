#pragma once
// The transports of this build; what was not built is not in the table.
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/control/whereabouts.h"
#include "lib/comm/operation_log.h"
#include "tessera/comm/bootstrap.h"

namespace tessera {

// What a transport may use to connect the ranks; outlives the communicators.
struct TransportContext {
  LaunchInfo launch;
  std::string address;  // of this host, for the job's other ranks
  ControlChannel* control;
  std::shared_ptr<AbortSignal> signal;
  // A value from one rank to another, see ControlClient.
  std::function<void(const std::string& key, const std::string& value)> post;
  std::function<std::string(const std::string& key)> take;
  // Ends every communicator of the job.
  std::function<void(const std::string& reason)> abort;
  std::shared_ptr<OperationLog> log;
  // Ends it with the sentence about a call of this rank that failed for this cause, or whose time
  // is over (empty cause); returns when the signal is raised. Any thread.
  ReportFailure report;
};

struct Transport {
  const char* name;
  // Empty when the transport can serve this launch on this rank, else the reason why not.
  std::string (*unusable_because)(const LaunchInfo& launch);
  std::unique_ptr<Communicator> (*connect)(const TransportContext& context);
  std::string (*library)();  // and its version; empty for a transport of this library's own
};
std::span<const Transport> transports();  // best first

// Where rank 0 listens, told by MPI: collective over the processes of the launcher.
using RendezvousExchange = Rendezvous (*)(const Rendezvous& of_rank_0);
// Null when MPI is not built, or is another one than the launcher's.
RendezvousExchange rendezvous_over_mpi(const LaunchInfo& launch);

// After the last communicator of the job; clean: no rank has failed.
void close_transports(bool clean);

}  // namespace tessera
