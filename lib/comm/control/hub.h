// SPDX-License-Identifier: MIT
#pragma once
// Rank 0's end of the control channel: one thread that serves the connections of all ranks.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/control/heartbeat.h"
#include "lib/comm/control/inquiry.h"
#include "lib/comm/control/pending_connections.h"
#include "lib/comm/control/wire.h"

namespace tessera::control {

// Accepts ranks until all have connected or the deadline passes. Then answers exchanges, forwards
// posted values, and tells all ranks when one fails, disconnects or falls silent. Later callers are
// rejected. Ends when every rank has said goodbye or disconnected. Never blocks on a rank that does
// not read.
class Hub {
 public:
  Hub(Socket listener, int world_size, std::string job, std::string secret, double timeout_s,
      double heartbeat_timeout_s = kHeartbeatTimeout, size_t most_bytes = kMostProven,
      LaunchGroup kin = {});
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  struct Peer {
    Socket socket;
    int rank = -1;  // -1: disconnected before all ranks had connected
    std::string host;
    std::string received;
    std::deque<std::shared_ptr<const std::string>> outgoing;
    size_t sent = 0;  // bytes of outgoing.front() already sent
    Silence silence;
    bool said_bye = false;
  };

  void serve();
  void poll_once();
  bool finished() const;
  // Callers that are not admitted yet, in hub_greeting.cpp:
  void greet(Caller&& caller, const Frame& frame);
  void admit(Caller&& caller, const Hello& hello);
  void meet(Caller&& caller, const Hello& hello);
  void put_off(Caller&& caller, const Hello& hello);
  void answer_put_off();
  bool is_taken(int rank) const;
  void welcome_all();
  void refuse_if_due();
  void refuse_all(const std::string& reason);
  std::vector<int> missing() const;
  // Admitted ranks:
  void read_from(Peer& peer);
  void write_to(Peer& peer);
  void handle(Peer& peer, const Frame& frame);
  void post(const Frame& frame);
  void look_after_silent();
  void lose(Peer& peer);
  void abort_all(const std::string& reason, int except);
  void end_all(Kind kind, const std::string& payload, int except);
  // Failures, in hub_inquiry.cpp:
  Inquiry& inquiry();
  void ask(int rank);
  void ask_all();
  void inquire(const std::string& cause);
  void inquire(const Report& report);
  void end_inquiry_if_due();
  void wake_those_who_wait_in_vain();
  void conclude_if_due();
  void send(Peer& peer, const std::shared_ptr<const std::string>& bytes);
  void send_to_all(Kind kind, const std::string& payload, int except = -1);
  void send_to(int rank, Kind kind, const std::string& payload);

  const Socket listener_;
  const int size_;
  const std::string job_;
  const std::string secret_;
  const double timeout_s_;
  const double heartbeat_timeout_s_;
  const size_t most_bytes_;  // limit of a frame
  const Clock::time_point deadline_;
  const LaunchGroup kin_;
  PendingConnections room_{true};
  Heart heart_;
  std::vector<Peer> peers_;
  // A caller that may belong to another job; a rank launched together with rank 0 has precedence.
  struct PutOff {
    Caller caller;
    Hello hello;
    Clock::time_point until;
  };
  std::vector<PutOff> put_off_;
  bool complete_ = false;  // all ranks were welcomed
  int turned_away_ = 0;    // callers with a wrong secret
  std::string last_turned_away_;
  std::string refusal_;
  std::optional<Clock::time_point> refused_at_;
  int told_ = 0;  // peers already told why the job was rejected
  bool aborted_ = false;
  std::optional<Inquiry> inquiry_;
  std::map<int, std::string> exchanging_;
  std::map<int, std::string> concluding_;
  std::vector<bool> gone_;
  std::vector<bool> concluded_;
  std::optional<Clock::time_point> conclude_by_;
  std::optional<Clock::time_point> concluded_at_;
  std::map<std::string, std::string> posted_;
  std::map<std::string, int> takers_;
  std::thread thread_;
};

}  // namespace tessera::control
