// SPDX-License-Identifier: MIT
#pragma once
// Interface of a transport.
#include <functional>
#include <memory>
#include <string>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/launch_info.h"

namespace tessera {

// Services for a transport while it connects; outlives its communicators.
struct TransportContext {
  LaunchInfo launch;
  std::string address;  // this host's address for other ranks
  ControlChannel* control;
  std::shared_ptr<AbortSignal> signal;
  // Passes a value from one rank to another, see ControlClient.
  std::function<void(const std::string& key, const std::string& value)> post;
  std::function<std::string(const std::string& key)> take;
  // Aborts every communicator of the job.
  std::function<void(const std::string& reason)> abort;
  std::shared_ptr<OperationLog> log;
  // Aborts the job with the diagnostic for this rank's failed call; empty cause: overdue. Returns
  // when the signal is raised. Any thread.
  ReportFailure report;
};

struct Transport {
  const char* name;
  // Empty when the transport can serve this launch on this rank, else the reason.
  std::string (*unusable_because)(const LaunchInfo& launch);
  std::unique_ptr<Communicator> (*connect)(const TransportContext& context);
  std::string (*library)();  // library and version; empty for a transport without a library
};

}  // namespace tessera
