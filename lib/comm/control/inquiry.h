// SPDX-License-Identifier: MIT
#pragma once
// Collects the ranks' statuses before the hub tells all of them why the job ends.
#include <string>
#include <vector>

#include "lib/comm/control/call_failure.h"
#include "lib/comm/control/socket.h"

namespace tessera::control {

// A rank's report of a call that does not end: the cause and its time limit.
struct Report {
  std::string cause;  // empty: timed out
  Call call;
  double timeout_s = 0;

  std::string pack() const;
  static Report unpack(const std::string& bytes);
};

// Ranks get a second to report their status; a stopped process does not answer. A late rank whose
// call decides which of two ranks is wrong is asked again within that time.
class Inquiry {
 public:
  explicit Inquiry(std::vector<std::string> hosts);  // by rank

  // Adds a sign of failure. The hub's own observation outranks reports of ranks.
  void add(const Report& report);
  void add(const std::string& cause);
  const Call& call() const { return failure_.call; }

  void expect(int rank) { awaited_[static_cast<size_t>(rank)] = true; }
  void forget(int rank) { awaited_[static_cast<size_t>(rank)] = false; }
  void hear(int rank, const std::string& status);
  std::vector<int> to_ask_again() const;  // ranks to ask once more now
  bool is_over() const;
  std::chrono::milliseconds patience() const;
  Error result() const { return failure_.explain(); }

 private:
  bool all_answered() const;

  CallFailure failure_;
  bool seen_ = false;  // the hub itself observed the cause
  std::vector<bool> awaited_;
  std::vector<int> undecided_;  // known once all have answered
  Clock::time_point heard_;     // time of the last answer
  const Clock::time_point deadline_;
};

}  // namespace tessera::control
