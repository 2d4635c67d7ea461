#pragma once
// Rank 0's side of the control channel: one thread that serves the connections of all ranks.
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/bootstrap/wire.h"

namespace tessera::control {

// Accepts ranks until all are there or the time is over; then answers exchanges, passes on posted
// values, tells all when one fails or vanishes, and sends callers of other jobs away. Ends when
// every rank has said goodbye or is gone.
class Hub {
 public:
  Hub(Socket listener, int world_size, std::string job, std::string secret, double timeout_s);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  struct Peer {
    Socket socket;
    std::string challenge;
    std::string received;
    std::string random;  // its challenge to us
    std::string host;
    int rank = -1;  // -1: has not said hello
    bool said_bye = false;
  };

  void serve();
  bool finished() const;
  void accept_peer();
  void read_from(Peer& peer);
  void handle(Peer& peer, const Frame& frame);
  void greet(Peer& peer, const Frame& frame);
  void refuse_all(const std::string& reason);
  void tell_refusal(const Peer& peer);
  void lose(Peer& peer);
  void abort_all(const std::string& reason, int except);
  void conclude_if_due();
  void send_to(int rank, Kind kind, const std::string& payload);
  std::vector<int> missing() const;
  void reap();

  const Socket listener_;
  const int size_;
  const std::string job_;
  const std::string secret_;
  const double timeout_s_;
  const Clock::time_point deadline_;
  std::vector<Peer> peers_;
  bool complete_ = false;                       // everyone was welcomed
  std::optional<Clock::time_point> refuse_by_;  // a rank cannot join: the others are told then
  std::string refusal_;
  std::optional<Clock::time_point> refused_at_;
  int told_ = 0;  // callers that know of the refusal
  bool aborted_ = false;
  std::map<int, std::string> exchanging_;
  std::map<int, std::string> concluding_;
  std::vector<bool> gone_;
  std::optional<Clock::time_point> conclude_by_;
  std::optional<Clock::time_point> concluded_at_;
  std::map<std::string, std::string> posted_;
  std::map<std::string, int> takers_;
  std::thread thread_;
};

}  // namespace tessera::control
