// SPDX-License-Identifier: MIT
#pragma once
// What the hub learns from the ranks before it tells all of them why the job ends.
#include <string>
#include <vector>

#include "lib/comm/control/call_failure.h"
#include "lib/comm/control/socket.h"

namespace tessera::control {

// A rank's report: its call that does not end, why, and the time that it was given.
struct Report {
  std::string cause;  // empty: the time is over
  Call call;
  double timeout_s = 0;

  std::string pack() const;
  static Report unpack(const std::string& bytes);
};

// Ranks are given a second to say what they are at; one that is stopped does not. One that is late,
// and whose call decides which of two is wrong, is asked again until then.
class Inquiry {
 public:
  explicit Inquiry(std::vector<std::string> hosts);  // by rank

  // A further sign of trouble. What the hub itself has seen counts more than what ranks report.
  void add(const Report& report);
  void add(const std::string& cause);
  const Call& call() const { return failure_.call; }

  void expect(int rank) { awaited_[static_cast<size_t>(rank)] = true; }
  void forget(int rank) { awaited_[static_cast<size_t>(rank)] = false; }
  void hear(int rank, const std::string& status);
  std::vector<int> to_ask_again() const;  // now
  bool is_over() const;
  std::chrono::milliseconds patience() const;
  Error result() const { return failure_.explain(); }

 private:
  bool all_answered() const;

  CallFailure failure_;
  bool seen_ = false;  // the cause is the hub's own
  std::vector<bool> awaited_;
  std::vector<int> undecided_;  // once all have answered
  Clock::time_point heard_;     // the last answer
  const Clock::time_point deadline_;
};

}  // namespace tessera::control
