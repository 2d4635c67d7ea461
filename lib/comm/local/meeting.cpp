// SPDX-License-Identifier: MIT
#include "lib/comm/local/meeting.h"

#include <algorithm>
#include <cstring>

#include "lib/comm/collective_timeout.h"
#include "lib/comm/local/domain.h"
#include "lib/comm/reduce_kernels.h"
#include "lib/core/host_name.h"
#include "lib/core/turn.h"
#include "tessera/comm/control_channel.h"

namespace tessera::local {
namespace {

// A message of the thread's own: copies of an exception share theirs.
[[noreturn]] void fail_with(const Error& error) {
  throw Error(error.code(), std::string(error.what()));
}

bool agree(const Request& a, const Request& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.count == b.count && a.op == b.op &&
         a.root == b.root;
}

}  // namespace

Error LocalJob::explain(const std::string& cause, const Call& call, double timeout_s) const {
  {
    std::lock_guard lock(mutex_);
    if (failed_) return *failed_;
  }
  CallFailure failure{.cause = cause, .call = call, .timeout_s = timeout_s, .ranks = {}};
  for (const auto& log : logs) failure.ranks.push_back({host_name(), log->status(&call)});
  const Error error = failure.explain();
  for (const auto& log : logs) log->fail(error.what());
  return error;
}

Error LocalJob::fail(const Error& reason) {
  std::lock_guard lock(mutex_);
  if (!failed_) failed_ = reason;
  return *failed_;
}

Error LocalJob::time_out(const Call& call, double timeout_s) {
  std::lock_guard lock(time_out_);  // until every meeting of the world knows it
  const Error error = fail(explain("", call, timeout_s));
  if (const auto all = world.lock()) all->abort(error);
  return error;
}

Meeting::Meeting(size_t participants, std::shared_ptr<LocalJob> job)
    : job_(std::move(job)), requests_(participants) {}

bool Meeting::has_arrived(int participant) const {
  std::lock_guard lock(mutex_);
  return requests_[participant].has_value();
}

bool Meeting::arrive(int participant, Request request) {
  std::unique_lock lock(mutex_);
  requests_[participant] = std::move(request);
  if (++arrived_ < requests_.size()) return false;
  if (state_ == State::kFailed) return true;  // too late
  if (!requests_agree()) {
    const Error error = job_->explain("", requests_.front()->call.text(), 0);
    lock.unlock();
    finish(error);
    return true;
  }
  for (const auto& each : requests_) each->call.started();
  plan();
  if (unit_count_ == 0) {
    lock.unlock();
    finish(std::nullopt);
    return true;
  }
  state_ = State::kRunning;
  changed_.notify_all();
  return true;
}

bool Meeting::requests_agree() const {
  return std::ranges::all_of(requests_,
                             [&](const auto& each) { return agree(*requests_.front(), *each); });
}

const LoggedCall& Meeting::any_call() const {
  const auto first = std::ranges::find_if(requests_, [](const auto& each) { return each.has_value(); });
  return (*first)->call;
}

void Meeting::plan() {
  shape_ = *requests_.front();
  shape_.input.reset();
  shape_.output.reset();
  const int64_t ranks = static_cast<int64_t>(requests_.size());
  for (const auto& request : requests_) {
    inputs_.push_back(request->input.defined()
                          ? static_cast<const char*>(request->input.const_data_ptr())
                          : nullptr);
    outputs_.push_back(request->output.defined() ? static_cast<char*>(request->output.data_ptr())
                                                 : nullptr);
  }
  units_per_part_ = (shape_.count + kUnitElements - 1) / kUnitElements;
  switch (shape_.operation) {
    case Operation::kAllReduce:
      unit_count_ = ranks == 1 ? 0 : units_per_part_;
      break;
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kBroadcast:
      unit_count_ = ranks * units_per_part_;
      break;
    case Operation::kSendRecv:
      unit_count_ = units_per_part_;
      break;
    case Operation::kBarrier:
      unit_count_ = 0;
      break;
  }
  const bool square =
      shape_.operation == Operation::kAllGather || shape_.operation == Operation::kReduceScatter;
  bytes_ = shape_.count * static_cast<int64_t>(c10::elementSize(shape_.dtype)) * ranks *
           (square ? ranks : 1);
}

void Meeting::run_unit(int64_t unit) {
  const int64_t ranks = static_cast<int64_t>(requests_.size());
  const int64_t part = unit / units_per_part_;
  const int64_t begin = unit % units_per_part_ * kUnitElements;
  const int64_t count = std::min(kUnitElements, shape_.count - begin);
  const int64_t part_begin = part * shape_.count + begin;
  const auto copy = [&](char* to, int64_t to_begin, const char* from) {
    const int64_t size = static_cast<int64_t>(c10::elementSize(shape_.dtype));
    to += to_begin * size;
    from += begin * size;
    if (to != from) std::memcpy(to, from, count * size);
  };
  switch (shape_.operation) {
    case Operation::kAllReduce: {
      std::vector<ReduceInput> inputs;
      std::vector<ReduceOutput> outputs;
      for (int64_t r = 0; r < ranks; ++r) {
        inputs.push_back({outputs_[r], begin});
        outputs.push_back({outputs_[r], begin});
      }
      return reduce_elements(shape_.dtype, shape_.op, inputs, outputs, count);
    }
    case Operation::kReduceScatter: {
      std::vector<ReduceInput> inputs;
      for (int64_t r = 0; r < ranks; ++r) inputs.push_back({inputs_[r], part_begin});
      const ReduceOutput output{outputs_[part], begin};
      return reduce_elements(shape_.dtype, shape_.op, inputs, {&output, 1}, count);
    }
    case Operation::kAllGather:
      for (int64_t r = 0; r < ranks; ++r) copy(outputs_[r], part_begin, inputs_[part]);
      return;
    case Operation::kBroadcast:
      return copy(outputs_[part], begin, outputs_[shape_.root]);
    case Operation::kSendRecv:
      return copy(outputs_[1], begin, inputs_[0]);
    case Operation::kBarrier:
      return;
  }
}

void Meeting::run_units() {
  while (true) {
    const int64_t unit = next_unit_.fetch_add(1);
    if (unit >= unit_count_) return;
    run_unit(unit);
    if (units_done_.fetch_add(1) + 1 == unit_count_) finish(std::nullopt);
  }
}

void Meeting::finish(const std::optional<Error>& error) {
  std::lock_guard lock(mutex_);
  if (state_ == State::kFailed || (error && state_ != State::kGathering)) return;
  for (const auto& request : requests_) {
    if (request) request->call.ended(!error);
  }
  error_ = error;
  state_ = error ? State::kFailed : State::kDone;
  changed_.notify_all();
}

void Meeting::fail(const Error& error) { finish(error); }

void Meeting::fail_because(const std::string& cause) {
  Call call;
  {
    std::lock_guard lock(mutex_);
    call = any_call().text();
  }
  finish(job_->explain(cause, call, 0));
}

void Meeting::wait(int participant) {
  const TurnGivenUp given_up;  // who is missing may want it
  std::unique_lock lock(mutex_);
  const auto timeout = collective_timeout();
  if (!changed_.wait_for(lock, timeout, [&] { return state_ != State::kGathering; })) {
    const Call call = requests_[participant]->call.text();
    lock.unlock();
    finish(job_->time_out(call, static_cast<double>(timeout.count())));
    lock.lock();
  }
  if (state_ == State::kRunning) {
    lock.unlock();
    run_units();
    lock.lock();
    changed_.wait(lock, [&] { return state_ != State::kRunning; });
  }
  if (requests_[participant]) {
    requests_[participant]->input.reset();
    requests_[participant]->output.reset();
  }
  if (state_ == State::kFailed) fail_with(*error_);
}

}  // namespace tessera::local
