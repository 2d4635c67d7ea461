// SPDX-License-Identifier: MIT
#pragma once
// Pending connections: accepted, but not yet proved to belong to the job.
#include <poll.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "lib/comm/control/wire.h"

namespace tessera::control {

struct Caller {
  Socket socket;
  std::string challenge;  // the random bytes it was asked to sign
  std::string received;
  Clock::time_point since;
};

// Limits strangers to 256 connections of 4 KiB and 5 s each. When full, a new connection replaces
// the oldest one, if that is 50 ms old. Ranks answer within those, or connect again.
class PendingConnections {
 public:
  // challenge: whether callers get random bytes to sign.
  explicit PendingConnections(bool challenge) : challenge_(challenge) {}

  // Appends the poll() entries, the listener last.
  void add_to(std::vector<pollfd>& waits, const Socket& listener) const;
  // Longest timeout for poll(), in milliseconds.
  int patience() const;
  // first: the polled entries of this object. judge gets each caller whose first frame is complete,
  // and keeps or closes the socket.
  using Judge = std::function<void(Caller&& caller, const Frame& frame)>;
  void serve(const pollfd* first, const Socket& listener, const Judge& judge);
  // Sends the reason to all pending callers and those at the listener; returns their number.
  int turn_away(const Socket& listener, Kind kind, const std::string& reason);

 private:
  bool has_place() const;
  void hear(Caller& caller, const Judge& judge);
  void accept_from(const Socket& listener);
  Socket accept_one(const Socket& listener);

  const bool challenge_;
  std::deque<Caller> callers_;  // in order of arrival
  Clock::time_point exhausted_until_{};
};

// Sends a short frame without waiting for the caller.
void tell(const Socket& socket, Kind kind, const std::string& payload);
}  // namespace tessera::control
