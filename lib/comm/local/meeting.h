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

#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera::local {

enum class Operation { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSendRecv, kBarrier };

// What one rank asks for. All requests of a meeting must agree on everything but the tensors.
struct Request {
  Operation operation = Operation::kBarrier;
  at::ScalarType dtype = at::kByte;
  int64_t count = 0;  // elements of one part
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  at::Tensor input;
  at::Tensor output;
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
// touches, so the result does not depend on who runs what. A meeting with two participants for
// kSendRecv: 0 sends, 1 receives.
class Meeting {
 public:
  Meeting(size_t participants, std::shared_ptr<LocalJob> job);

  // True for the last to arrive; the meeting is then ready: its units must be run. Not ready (but
  // failed) when the requests disagree.
  bool arrive(int participant, Request request);
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

  bool requests_agree() const;
  const LoggedCall& any_call() const;
  void plan();
  void run_unit(int64_t unit);
  void finish(const std::optional<Error>& error);

  enum class State { kGathering, kRunning, kDone, kFailed };

  const std::shared_ptr<LocalJob> job_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kGathering;
  std::optional<Error> error_;
  std::vector<std::optional<Request>> requests_;
  size_t arrived_ = 0;

  int64_t bytes_ = 0;  // read and written
  int64_t units_per_part_ = 0;
  int64_t unit_count_ = 0;
  std::vector<const char*> inputs_;
  std::vector<char*> outputs_;
  Request shape_;  // the common request, without tensors
  std::atomic<int64_t> next_unit_{0};
  std::atomic<int64_t> units_done_{0};
};

}  // namespace tessera::local
