// SPDX-License-Identifier: MIT
#pragma once
// What a way of connecting ranks has to offer.
#include <functional>
#include <memory>
#include <string>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/launch_info.h"

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

}  // namespace tessera
