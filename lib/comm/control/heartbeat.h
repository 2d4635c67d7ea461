// SPDX-License-Identifier: MIT
#pragma once
// Who has fallen silent: both ends of the control channel send a pulse when they say nothing else.
#include <ctime>
#include <string>

#include "lib/comm/control/socket.h"

namespace tessera::control {

constexpr double kHeartbeatTimeout = 45;  // seconds

// TESSERA_HEARTBEAT_TIMEOUT_S, or kHeartbeatTimeout. Throws Error(kInvalidArgument) when it is no
// positive number.
double heartbeat_timeout_s();

// How long a peer has said nothing. Only time in which this process ran counts: one that was
// stopped itself blames nobody.
class Silence {
 public:
  void end();
  void pass(Clock::duration awake) { length_ += awake; }
  bool exceeds(double seconds) const { return length_ > std::chrono::duration<double>(seconds); }
  // Why the job ends: who is silent, since when, and what that may mean.
  std::string reason(int rank, const std::string& host, double timeout_s) const;

 private:
  Clock::duration length_{};
  std::time_t since_ = std::time(nullptr);
};

// When to send a pulse, and how much of the time since the last look this process ran.
class Heart {
 public:
  explicit Heart(double timeout_s);
  // Between two looks no more time may be waited for than this.
  std::chrono::milliseconds rest() const { return rest_; }
  // The time since the last look, as far as it counts.
  Clock::duration look();
  bool beat_is_due();

 private:
  std::chrono::milliseconds rest_;
  Clock::time_point looked_ = Clock::now();
  Clock::time_point beaten_{};
};

}  // namespace tessera::control
