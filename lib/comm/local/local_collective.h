// SPDX-License-Identifier: MIT
#pragma once
// A collective of in-process ranks: each passes its tensors, and any idle thread does the work in
// place.
#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/communicator_base.h"
#include "tessera/core/error.h"

namespace tessera::local {

// One rank's operation and its log record.
struct Contribution {
  Operation operation;
  LoggedCall call;
};

class LocalGroup;

// State shared by all groups of one world.
struct LocalJob {
  std::vector<std::shared_ptr<OperationLog>> logs;  // by rank of the world
  std::weak_ptr<LocalGroup> world;

  // The diagnostic for a call that does not end; writes every rank's operation log. After the world
  // has failed: its reason. For a cause that another call has met: the diagnostic of that call.
  Error explain(const std::string& cause, const Call& call, double timeout_s);
  // Fails the world; returns the first reason if it had failed already.
  Error fail(const Error& reason);
  // Fails the world because of an overdue call, including ranks outside its group.
  Error time_out(const Call& call, double timeout_s);

 private:
  std::mutex mutex_;
  std::mutex explaining_;
  std::mutex time_out_;
  std::map<std::string, Error> explained_;  // by cause
  std::optional<Error> failed_;
};

// Work is cut into units that any thread may run. A unit writes memory that no other unit touches,
// so results do not depend on the threads. A message has two participants: 0 sends, 1 receives.
class LocalCollective {
 public:
  LocalCollective(size_t participants, std::shared_ptr<LocalJob> job);

  // True for the last participant; the operation is then ready and its units must be run. False
  // when participants disagree, which fails it.
  bool arrive(int participant, Contribution contribution);
  bool has_arrived(int participant) const;
  // Fails an incomplete operation. No unit runs afterwards.
  void fail(const Error& error);
  void fail_because(const std::string& cause);

  bool worth_sharing() const { return bytes_ > kInlineBytes; }
  bool exhausted() const { return next_unit_.load() >= unit_count_; }
  void run_units();
  // Runs units, waits for completion, releases the participant's tensors.
  void wait(int participant);

 private:
  static constexpr int64_t kInlineBytes = 256
                                          // up to this size the last rank to arrive does all the
                                          // work
                                          << 10;
  static constexpr int64_t kUnitElements = 64 << 10;

  std::optional<Error> disagreement();  // also fills gives_ and takes_
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

  // Set once all participants have arrived:
  OperationKind kind_ = OperationKind::kBarrier;
  at::ScalarType dtype_ = at::kByte;
  ReduceOp reduce_ = ReduceOp::kSum;
  int root_ = 0;
  int64_t part_ = 0;   // elements of one part, the longest if they differ
  int64_t bytes_ = 0;  // bytes read and written
  int64_t units_per_part_ = 0;
  int64_t unit_count_ = 0;
  std::vector<const char*> inputs_;
  std::vector<char*> outputs_;
  std::vector<PartRanges> gives_, takes_;  // parts of an all_to_all, by rank
  std::atomic<int64_t> next_unit_{0};
  std::atomic<int64_t> units_done_{0};
};

}  // namespace tessera::local
