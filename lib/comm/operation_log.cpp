// SPDX-License-Identifier: MIT
#include "lib/comm/operation_log.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/comm/operation_scope.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr uint64_t kRecent = 16;  // calls in a rank's status

double utc_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <size_t N>
void keep(std::array<char, N>& to, std::string_view from) {
  const size_t size = std::min(from.size(), N - 1);
  std::ranges::copy(from.substr(0, size), to.begin());
  to[size] = '\0';
}

// One line of printable text from any label.
std::string plain(const char* text) {
  std::string line = text;
  for (char& byte : line) byte = byte < ' ' || byte > '~' ? '?' : byte;
  return line;
}

const char* name_of(OperationState state) {
  constexpr const char* kNames[] = {"enqueued", "started", "done", "failed"};
  return kNames[static_cast<size_t>(state)];
}

bool is_open(const OperationRecord& record) {
  return record.number > 0 &&
         (record.state == OperationState::kEnqueued || record.state == OperationState::kStarted);
}

}  // namespace

Call OperationRecord::text() const {
  Call text;
  if (number == 0) return text;
  text.communicator = communicator.data();
  text.sequence = call.sequence;
  text.source = call.source;
  text.destination = call.destination;
  text.operation = call.operation;
  std::string data;
  if (call.count >= 0) data = concat(call.count, " x ", call.dtype);
  if (call.count == CallDescription::kOfEachRank) data = concat(call.dtype);
  if (call.root >= 0) data += concat(", root ", call.root);
  text.data = concat("(", data, call.suffix, ")");
  text.label = plain(label.data());
  text.phase = phase;
  text.step = step;
  text.since_s = enqueued_s;
  text.ended = state == OperationState::kDone;
  return text;
}

int OperationLog::join(const std::string& name, int rank, int size) {
  const std::lock_guard lock(mutex_);
  const auto ended =
      std::ranges::find_if(communicators_, [](const Membership& each) { return !each.open; });
  // Keeps the latest ended communicators.
  const bool reuse = communicators_.size() >= 64 && ended != communicators_.end();
  Membership& place = reuse ? *ended : communicators_.emplace_back();
  place = {name.substr(0, std::tuple_size_v<decltype(OperationRecord::communicator)> - 1), rank,
           size};
  return static_cast<int>(&place - communicators_.data());
}

void OperationLog::leave(int place) {
  const std::lock_guard lock(mutex_);
  communicators_[static_cast<size_t>(place)].open = false;
}

uint64_t OperationLog::add(int place, const CallDescription& call, std::string_view label) {
  const OperationContext& context = operation_context();
  const double now = utc_s();
  const std::lock_guard lock(mutex_);
  if (context.told) {
    phase_ = context.phase;
    step_ = context.step;
    if (folder_ != context.folder) folder_ = context.folder;
  }
  OperationRecord& record = ring_[last_ % kRecords];
  Membership& communicator = communicators_[static_cast<size_t>(place)];
  record.number = ++last_;
  record.call = call;
  keep(record.communicator, communicator.communicator);
  keep(record.label, label.empty() ? context.label : label);
  record.phase = phase_;  // a thread without a phase uses the rank's
  record.step = step_;
  record.state = OperationState::kEnqueued;
  record.enqueued_s = now;
  record.started_s = record.ended_s = 0;
  if (call.source < 0) communicator.collectives = call.sequence + 1;
  return last_;
}

void OperationLog::mark(uint64_t number, OperationState state) {
  const double now = utc_s();
  const std::lock_guard lock(mutex_);
  OperationRecord& record = ring_[(number - 1) % kRecords];
  if (record.number != number || !is_open(record)) return;
  record.state = state;
  if (record.started_s == 0) record.started_s = now;
  if (state != OperationState::kStarted) record.ended_s = now;
}

std::optional<OperationRecord> OperationLog::find(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const OperationRecord& record = ring_[(number - 1) % kRecords];
  if (number == 0 || record.number != number) return std::nullopt;
  return record;
}

RankStatus OperationLog::status(const Call* asked) const {
  const std::lock_guard lock(mutex_);
  RankStatus status;
  status.communicators = communicators_;
  if (last_ == 0) return status;
  for (uint64_t number = last_ < kRecords ? 1 : last_ - kRecords + 1; number <= last_; ++number) {
    const OperationRecord& record = ring_[(number - 1) % kRecords];
    if (is_open(record) && status.waiting.communicator.empty()) status.waiting = record.text();
    if (asked != nullptr && record.text().same_place(*asked)) status.asked = record.text();
    if (last_ - number < kRecent) status.recent.insert(status.recent.begin(), record.text());
  }
  return status;
}

std::string OperationLog::to_json() const {
  std::string lines;
  for (uint64_t number = last_ < kRecords ? 1 : last_ - kRecords + 1; number <= last_; ++number) {
    const OperationRecord& record = ring_[(number - 1) % kRecords];
    const Call text = record.text();
    JsonWriter line;
    line.begin_object();
    line.field("rank", rank_).field("number", static_cast<int64_t>(number));
    line.field("step", record.step).field("phase", record.phase);
    line.field("operation", text.operation).field("label", text.label);
    line.field("communicator", text.communicator).field("sequence", record.call.sequence);
    if (text.is_message()) {
      line.field("source", record.call.source).field("destination", record.call.destination);
    }
    if (record.call.root >= 0) line.field("root", record.call.root);
    if (record.call.count != CallDescription::kNoTensor) {
      line.field("dtype", c10::toString(record.call.dtype));
    }
    if (record.call.count >= 0) {
      const auto size = static_cast<int64_t>(c10::elementSize(record.call.dtype));
      line.field("count", record.call.count);
      line.field("bytes", record.call.count * size);
    }
    line.field("state", name_of(record.state)).field("enqueued_unix_s", record.enqueued_s);
    const auto time = [&](const char* key, double at_s) {
      if (at_s > 0) line.field(key, at_s);
    };
    time("started_unix_s", record.started_s);
    time("ended_unix_s", record.ended_s);
    line.end_object();
    lines += line.text() + "\n";
  }
  return lines;
}

void OperationLog::fail(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = sentence;
  const char* named = std::getenv("TESSERA_OPERATION_LOG");
  const std::string folder = named != nullptr ? named : folder_;
  if (folder.empty() || folder == "none") return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const std::string path = concat(folder, "/operations-rank-", rank_, ".jsonl");
  std::ofstream file(path, std::ios::trunc);
  file << to_json();
  if (file.flush()) path_ = path;
}

std::string OperationLog::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string OperationLog::path() const {
  const std::lock_guard lock(mutex_);
  return path_;
}

Call LoggedCall::text() const {
  const auto record = log_ == nullptr ? std::nullopt : log_->find(number_);
  return record ? record->text() : Call();
}

}  // namespace tessera
