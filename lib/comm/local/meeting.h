// SPDX-License-Identifier: MIT
#pragma once
// One operation of in-process ranks: they bring their buffers, and whoever has time does the work
// on them in place.
#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/communicator_base.h"
#include "tessera/core/error.h"

namespace tessera::local {

// What one rank brings.
struct Contribution {
  Operation operation;
  LoggedCall call;
};

class LocalGroup;

// What the groups of one world share.
struct LocalJob {
  std::vector<std::shared_ptr<OperationLog>> logs;  // by rank of the world
  std::weak_ptr<LocalGroup> world;

  // The sentence about this call, which does not end; every rank's last operations are written.
  // Once the world has failed, why it has.
  Error explain(const std::string& cause, const Call& call, double timeout_s) const;
  // The world fails: of several reasons the first counts, which is given back.
  Error fail(const Error& reason);
  // Likewise because of a call, also for its ranks that are elsewhere.
  Error time_out(const Call& call, double timeout_s);

 private:
  mutable std::mutex mutex_;
  std::mutex time_out_;
  std::optional<Error> failed_;
};

// The work is cut into units that any thread may run; a unit writes memory that no other unit
// touches, so the result does not depend on who runs what. Of a message there are two participants:
// 0 sends, 1 receives.
class Meeting {
 public:
  Meeting(size_t participants, std::shared_ptr<LocalJob> job);

  // True for the last to arrive; the meeting is then ready: its units must be run. Not ready (but
  // failed) when the participants disagree.
  bool arrive(int participant, Contribution contribution);
  bool has_arrived(int participant) const;
  // Ends a meeting that is not complete. No unit runs afterwards.
  void fail(const Error& error);
  void fail_because(const std::string& cause);

  bool worth_sharing() const { return bytes_ > kInlineBytes; }
  bool exhausted() const { return next_unit_.load() >= unit_count_; }
  void run_units();
  // Helps with the units, waits for the end, lets go of the participant's tensors.
  void wait(int participant);

 private:
  static constexpr int64_t kInlineBytes = 256
                                          << 10;  // below this the last rank to arrive does it all
  static constexpr int64_t kUnitElements = 64 << 10;

  std::optional<Error> disagreement();  // and what each gives
  const LoggedCall& any_call() const;
  int64_t count() const { return static_cast<int64_t>(brought_.size()); }
  void plan();
  void run_unit(int64_t unit);
  void finish(const std::optional<Error>& error);

  enum class State { kGathering, kRunning, kDone, kFailed };

  const std::shared_ptr<LocalJob> job_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kGathering;
  std::optional<Error> error_;
  std::vector<std::optional<Contribution>> brought_;
  size_t arrived_ = 0;

  // Once all have come:
  OperationKind kind_ = OperationKind::kBarrier;
  at::ScalarType dtype_ = at::kByte;
  ReduceOp reduce_ = ReduceOp::kSum;
  int root_ = 0;
  int64_t part_ = 0;   // elements of one part, the longest where they differ
  int64_t bytes_ = 0;  // read and written
  int64_t units_per_part_ = 0;
  int64_t unit_count_ = 0;
  std::vector<const char*> inputs_;
  std::vector<char*> outputs_;
  std::vector<PartRanges> gives_, takes_;  // of all_to_all, by rank
  std::atomic<int64_t> next_unit_{0};
  std::atomic<int64_t> units_done_{0};
};

}  // namespace tessera::local
