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
#include "lib/comm/control/heartbeat.h"
#include "lib/comm/control/inquiry.h"
#include "lib/comm/control/whereabouts.h"
#include "lib/comm/control/wire.h"

namespace tessera::control {

// Connects to the hub and listens to it on a thread of its own: an abort of the job raises the
// signal at once, and so does a hub that has fallen silent. Calls wait as long as hub and ranks
// live, and no longer.
class ControlClient {
 public:
  struct Identity {
    int rank;
    int world_size;
    std::string job;  // see Launch
    Kin kin{};
  };
  // Returns when every rank has arrived. Throws the hub's reason otherwise. most_bytes: of a frame,
  // the hub's too.
  ControlClient(const Whereabouts& rank_0, const Identity& identity, double timeout_s,
                std::shared_ptr<AbortSignal> signal, size_t most_bytes = kMostProven);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  // Of any length.
  std::vector<std::string> exchange(const std::string& bytes);
  std::vector<std::string> conclude(const std::string& status);
  void abort(const std::string& reason);
  // One rank posts a value under a key that no one else uses, another takes it (waiting until it is
  // there). Any thread.
  void post(const std::string& key, const std::string& value);
  std::string take(const std::string& key);

  // What this rank says about its operations, on the listening thread.
  struct Witness {
    std::function<RankStatus(const Call* asked)> tell;
    std::function<void()> on_failure;  // of communication; the signal is raised
  };
  void set_witness(Witness witness);
  // Has the hub find out why this call does not end; returns when the signal is raised. Any thread.
  void report(const Report& report);
  // This end of the connection: the address that reaches rank 0.
  std::string address() const { return local_address(socket_); }

 private:
  enum class Answer { kAdmitted, kNotOurs, kAgain };
  void find_hub(const Whereabouts& rank_0, const Identity& identity, double timeout_s);
  // why: what is wrong with who answers.
  Answer introduce(const Rendezvous& place, const Identity& identity, bool certain,
                   std::string& why);
  void listen();
  // False when the connection has ended.
  bool hear();
  void handle(Frame&& frame);
  void beat();
  void answer();
  bool try_send(Kind kind, const std::string& payload);
  void fail(const std::string& reason, ErrorCode code);
  void end(const std::string& reason);
  void close();
  // Throws Error(kInvalidArgument) for what no frame holds.
  void send(Kind kind, const std::string& payload);
  // Waits for what the listening thread puts into the slot.
  template <typename Slot>
  std::string await(Slot arrived, bool even_when_aborted);

  const size_t ranks_;
  const size_t most_bytes_;
  Socket socket_;
  const std::shared_ptr<AbortSignal> signal_;
  std::string hub_host_;
  double heartbeat_timeout_s_ = kHeartbeatTimeout;
  std::mutex send_mutex_;
  std::string received_;  // of the listening thread
  Silence silence_;       // likewise
  std::optional<std::string> asked_;  // likewise: a question without an answer
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
