// SPDX-License-Identifier: MIT
#pragma once
// Detection of silent peers: both ends of the control channel send a pulse when they have nothing
// else to send.
#include <ctime>
#include <string>

#include "lib/comm/control/socket.h"

namespace tessera::control {

constexpr double kHeartbeatTimeout = 45;  // seconds

// TESSERA_HEARTBEAT_TIMEOUT_S in seconds, or kHeartbeatTimeout. Throws Error(kInvalidArgument) when
// it is no positive number.
double heartbeat_timeout_s();

// Time since a peer's last frame. Only time in which this process ran counts, so a process that was
// stopped blames nobody.
class Silence {
 public:
  void end();
  void pass(Clock::duration awake) { length_ += awake; }
  bool exceeds(double seconds) const { return length_ > std::chrono::duration<double>(seconds); }
  // The job's abort reason: which rank is silent, since when, and possible causes.
  std::string reason(int rank, const std::string& host, double timeout_s) const;

 private:
  Clock::duration length_{};
  std::time_t since_ = std::time(nullptr);
};

// When the next pulse is due, and the time this process ran since the last look.
class Heart {
 public:
  explicit Heart(double timeout_s);
  // Longest wait between two looks.
  std::chrono::milliseconds rest() const { return rest_; }
  // Running time since the last look.
  Clock::duration look();
  bool beat_is_due();

 private:
  std::chrono::milliseconds rest_;
  Clock::time_point looked_ = Clock::now();
  Clock::time_point beaten_{};
};

}  // namespace tessera::control
