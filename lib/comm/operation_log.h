// SPDX-License-Identifier: MIT
#pragma once
// The last operations of a rank, in memory of a fixed size: what it called, for what, and how far
// each of them has come.
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

// What a communicator knows of a call when it is made.
struct CallDescription {
  static constexpr int64_t kNoTensor = -1, kOfEachRank = -2;  // counts

  const char* operation = "";  // text that lives for ever
  const char* suffix = "";     // likewise: ", sum"
  at::ScalarType dtype = at::kByte;
  int64_t count = kNoTensor;  // elements
  int root = -1;
  int64_t sequence = 0;  // among the communicator's collectives, or the messages of the pair
  int source = -1, destination = -1;  // of a message: ranks of the communicator
};

struct OperationRecord {
  uint64_t number = 0;  // the rank's own count, from 1; 0: none
  CallDescription call;
  std::array<char, 40> communicator{};
  std::array<char, 72> label{};
  const char* phase = "";
  int64_t step = 0;
  OperationState state = OperationState::kEnqueued;
  double enqueued_s = 0, started_s = 0, ended_s = 0;  // UTC; 0: not yet

  Call text() const;
};

// Any thread. Noting an operation allocates nothing.
class OperationLog {
 public:
  static constexpr size_t kRecords = 256;

  explicit OperationLog(int rank) : rank_(rank) {}
  int rank() const { return rank_; }  // of the world

  // A communicator of this rank begins, and gets a place; ends.
  int join(const std::string& name, int rank, int size);
  void leave(int place);

  // label: what the tensor is; empty: as this thread was told.
  uint64_t add(int place, const CallDescription& call, std::string_view label = {});
  void mark(uint64_t number, OperationState state);
  std::optional<OperationRecord> find(uint64_t number) const;

  // What this rank can say about a call that does not end, its own or another rank's.
  RankStatus status(const Call* asked) const;

  // Communication has failed: keeps the first sentence, and writes the records to
  // TESSERA_OPERATION_LOG or to the folder that was noted last, as JSON lines, oldest first. Once.
  void fail(const std::string& sentence);
  std::string failure() const;  // empty: it has not
  std::string path() const;     // of what was written; empty: nothing was

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

// A noted call.
class LoggedCall {
 public:
  LoggedCall() = default;
  LoggedCall(std::shared_ptr<OperationLog> log, uint64_t number)
      : log_(std::move(log)), number_(number) {}
  void started() const { mark(OperationState::kStarted); }
  void ended(bool well = true) const { mark(well ? OperationState::kDone : OperationState::kFailed); }
  // What it is; empty when it was not noted.
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
