// SPDX-License-Identifier: MIT
#pragma once
// A rank's side of the control channel.
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/control/endpoints.h"
#include "lib/comm/control/heartbeat.h"
#include "lib/comm/control/inquiry.h"
#include "lib/comm/control/wire.h"

namespace tessera::control {

// Connects to the hub and listens to it on a thread of its own. That thread raises the signal when
// the job aborts or the hub falls silent. Calls block as long as hub and ranks live.
class ControlClient {
 public:
  struct Identity {
    int rank;
    int world_size;
    std::string job;  // as in Launch
    LaunchGroup kin{};
  };
  // Returns when every rank has arrived, else throws the hub's reason. most_bytes: limit of a
  // frame, equal to the hub's.
  ControlClient(const Endpoints& rank_0, const Identity& identity, double timeout_s,
                std::shared_ptr<AbortSignal> signal, size_t most_bytes = kMostProven);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  // Bytes of every rank, by rank; any length. Collective.
  std::vector<std::string> exchange(const std::string& bytes);
  std::vector<std::string> conclude(const std::string& status);
  void abort(const std::string& reason);
  // post() stores a value under a unique key; take() waits for it and removes it. Any thread.
  void post(const std::string& key, const std::string& value);
  std::string take(const std::string& key);

  // Callbacks for this rank's operation status, called on the listening thread.
  struct Witness {
    std::function<RankStatus(const Call* asked)> tell;
    std::function<void()> on_failure;  // communication has failed and the signal is raised
  };
  void set_witness(Witness witness);
  // Reports a call that does not end to the hub; returns when the signal is raised. Any thread.
  void report(const Report& report);
  // Local address of the connection that reaches rank 0.
  std::string address() const { return local_address(socket_); }

 private:
  enum class Answer { kAdmitted, kNotOurs, kAgain };
  void find_hub(const Endpoints& rank_0, const Identity& identity, double timeout_s);
  // why: set to the problem with the answering process.
  Answer introduce(const Rendezvous& place, const Identity& identity, bool certain,
                   std::string& why);
  void listen();
  // Reads and handles frames; false when the connection has ended.
  bool hear();
  void handle(Frame&& frame);
  void beat();
  void answer();
  bool try_send(Kind kind, const std::string& payload);
  void fail(const std::string& reason, ErrorCode code);
  void end(const std::string& reason);
  void close();
  // Throws Error(kInvalidArgument) for a payload beyond the limit of a frame.
  void send(Kind kind, const std::string& payload);
  // Waits until the listening thread has filled the slot.
  template <typename Slot>
  std::string await(Slot arrived, bool even_when_aborted);

  const size_t ranks_;
  const size_t most_bytes_;
  Socket socket_;
  const std::shared_ptr<AbortSignal> signal_;
  std::string hub_host_;
  double heartbeat_timeout_s_ = kHeartbeatTimeout;
  std::mutex send_mutex_;
  std::string received_;              // listening thread only
  Silence silence_;                   // listening thread only
  std::optional<std::string> asked_;  // listening thread only: the hub's unanswered kAsk
  std::mutex mutex_;
  std::condition_variable changed_;
  bool welcome_ = false;
  bool closed_ = false;
  std::string refusal_;
  std::optional<std::string> exchanged_;
  std::optional<std::string> concluded_;
  std::map<std::string, std::string> taken_;
  Witness witness_;
  std::thread thread_;
};

}  // namespace tessera::control
