// SPDX-License-Identifier: MIT
#pragma once
// Those who have connected to a port and not yet proved that they belong to the job.
#include <poll.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "lib/comm/control/wire.h"

namespace tessera::control {

struct Caller {
  Socket socket;
  std::string challenge;  // what it was asked to answer
  std::string received;
  Clock::time_point since;
};

// Bounds what strangers can take: 256 callers at a time, 4 KiB and 5 s each. A full room makes
// place for a newcomer by sending the one away that has been there longest, after 50 ms at the
// earliest: ranks answer within those, or call again.
class WaitingRoom {
 public:
  // challenge: callers are asked first.
  explicit WaitingRoom(bool challenge) : challenge_(challenge) {}

  // Adds what poll() is to wait for, the listener last.
  void add_to(std::vector<pollfd>& waits, const Socket& listener) const;
  // How long poll() may wait at most, in milliseconds.
  int patience() const;
  // first: what poll() filled in for this room. judge is given each caller whose first frame is
  // whole; it keeps the socket or closes it.
  using Judge = std::function<void(Caller&& caller, const Frame& frame)>;
  void serve(const pollfd* first, const Socket& listener, const Judge& judge);
  // Tells those inside and those at the listener why they cannot stay; returns how many it told.
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

// Says something short to a caller without waiting for it.
void tell(const Socket& socket, Kind kind, const std::string& payload);
}  // namespace tessera::control
