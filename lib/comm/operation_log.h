// SPDX-License-Identifier: MIT
#pragma once
// Ring buffer of a rank's last operations: call, tensor, phase and progress, in memory of fixed
// size.
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/comm/control/call_failure.h"

namespace tessera {

enum class OperationState : uint8_t { kEnqueued, kStarted, kDone, kFailed };

// A communicator's description of a call at the time it is made.
struct CallDescription {
  static constexpr int64_t kNoTensor = -1, kOfEachRank = -2;  // special values of count

  const char* operation = "";  // static storage
  const char* suffix = "";     // static storage; such as ", sum"
  at::ScalarType dtype = at::kByte;
  int64_t count = kNoTensor;  // elements
  int root = -1;
  int64_t sequence = 0;  // index among the communicator's collectives, or the pair's messages
  int source = -1, destination = -1;  // ranks within the communicator; messages only
};

struct OperationRecord {
  uint64_t number = 0;  // counted by this rank from 1; 0: none
  CallDescription call;
  std::array<char, 40> communicator{};
  std::array<char, 72> label{};
  const char* phase = "";
  int64_t step = 0;
  OperationState state = OperationState::kEnqueued;
  double enqueued_s = 0, started_s = 0, ended_s = 0;  // UTC seconds; 0: not yet

  Call text() const;
};

// Thread-safe. Recording an operation allocates nothing.
class OperationLog {
 public:
  static constexpr size_t kRecords = 256;

  explicit OperationLog(int rank) : rank_(rank) {}
  int rank() const { return rank_; }  // world rank

  // Registers a communicator of this rank and returns its index; leave() ends it.
  int join(const std::string& name, int rank, int size);
  void leave(int place);

  // label: name of the tensor; empty: the thread's ForTensor label.
  uint64_t add(int place, const CallDescription& call, std::string_view label = {});
  void mark(uint64_t number, OperationState state);
  std::optional<OperationRecord> find(uint64_t number) const;

  // This rank's status for a call that does not end, its own or another rank's.
  RankStatus status(const Call* asked) const;

  // Records that communication has failed, once: keeps the first message, and writes the records to
  // TESSERA_OPERATION_LOG or the last noted folder. JSON lines, oldest first.
  void fail(const std::string& sentence);
  std::string failure() const;  // empty: no failure
  std::string path() const;     // file written; empty: none

 private:
  std::string to_json() const;

  const int rank_;
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::array<OperationRecord, kRecords> ring_{};
  std::vector<Membership> communicators_;
  std::string folder_;
  const char* phase_ = "start";
  int64_t step_ = 0;
  std::string failure_, path_;
};

// A recorded call.
class LoggedCall {
 public:
  LoggedCall() = default;
  LoggedCall(std::shared_ptr<OperationLog> log, uint64_t number)
      : log_(std::move(log)), number_(number) {}
  void started() const { mark(OperationState::kStarted); }
  void ended(bool well = true) const {
    mark(well ? OperationState::kDone : OperationState::kFailed);
  }
  // The call's description; empty when it was not recorded.
  Call text() const;

 private:
  void mark(OperationState state) const {
    if (log_ != nullptr) log_->mark(number_, state);
  }
  std::shared_ptr<OperationLog> log_;
  uint64_t number_ = 0;
};

using ReportFailure = std::function<void(const LoggedCall& call, const std::string& cause)>;

}  // namespace tessera
