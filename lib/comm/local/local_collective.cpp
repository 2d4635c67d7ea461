// SPDX-License-Identifier: MIT
#include "lib/comm/local/local_collective.h"

#include <algorithm>
#include <cstring>

#include "lib/comm/collective_timeout.h"
#include "lib/comm/local/domain.h"
#include "lib/comm/reduce_kernels.h"
#include "lib/core/host_name.h"
#include "lib/core/thread_lease.h"
#include "tessera/comm/control_channel.h"

namespace tessera::local {
namespace {

// Throws a copy with a message of its own: copies of an exception share theirs between threads.
[[noreturn]] void fail_with(const Error& error) {
  throw Error(error.code(), std::string(error.what()));
}

// Elements per rank where all parts are equal.
int64_t part_of(const Operation& o, int64_t ranks) {
  switch (o.kind) {
    case OperationKind::kAllGather:
      return o.input.numel();
    case OperationKind::kAllToAll:
      return o.input_counts.empty() ? o.input.numel() / ranks : -1;
    case OperationKind::kBarrier:
      return 0;
    default:
      return o.tensor().numel();
  }
}

bool agree(const Operation& a, const Operation& b, int64_t ranks) {
  if (a.is_message() && b.is_message()) {
    return a.tensor().scalar_type() == b.tensor().scalar_type() &&
           a.tensor().numel() == b.tensor().numel();
  }
  if (a.kind != b.kind) return false;
  if (a.kind == OperationKind::kBarrier) return true;
  return a.tensor().scalar_type() == b.tensor().scalar_type() &&
         part_of(a, ranks) == part_of(b, ranks) && a.reduce == b.reduce && a.peer == b.peer;
}

}  // namespace

Error LocalJob::explain(const std::string& cause, const Call& call, double timeout_s) {
  std::lock_guard one_at_a_time(explaining_);
  {
    std::lock_guard lock(mutex_);
    if (failed_) return *failed_;
  }
  const auto known = explained_.find(cause);
  if (known != explained_.end()) return known->second;
  CallFailure failure{.cause = cause, .call = call, .timeout_s = timeout_s, .ranks = {}};
  for (const auto& log : logs) failure.ranks.push_back({host_name(), log->status(&call)});
  const Error error = failure.explain();
  for (const auto& log : logs) log->fail(error.what());
  if (!cause.empty()) explained_.emplace(cause, error);
  return error;
}

Error LocalJob::fail(const Error& reason) {
  std::lock_guard lock(mutex_);
  if (!failed_) failed_ = reason;
  return *failed_;
}

Error LocalJob::time_out(const Call& call, double timeout_s) {
  std::lock_guard lock(time_out_);  // held until every pending operation of the world knows it
  const Error error = fail(explain("", call, timeout_s));
  if (const auto all = world.lock()) all->abort(error);
  return error;
}

LocalCollective::LocalCollective(size_t participants, std::shared_ptr<LocalJob> job)
    : job_(std::move(job)), brought_(participants) {}

bool LocalCollective::has_arrived(int participant) const {
  std::lock_guard lock(mutex_);
  return brought_[participant].has_value();
}

bool LocalCollective::arrive(int participant, Contribution contribution) {
  std::unique_lock lock(mutex_);
  brought_[participant] = std::move(contribution);
  if (++arrived_ < brought_.size()) return false;
  if (state_ == State::kFailed) return true;  // already complete or failed
  if (const std::optional<Error> error = disagreement()) {
    lock.unlock();
    finish(error);
    return true;
  }
  for (const auto& each : brought_) each->call.started();
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

std::optional<Error> LocalCollective::disagreement() {
  const Operation& first = brought_.front()->operation;
  const auto explain = [&](const std::string& cause) {
    return job_->explain(cause, brought_.front()->call.text(), 0);
  };
  for (const auto& each : brought_) {
    if (!agree(first, each->operation, count())) return explain("");
  }
  if (first.kind != OperationKind::kAllToAll) return std::nullopt;
  for (const auto& each : brought_) {
    const Operation& o = each->operation;
    const int ranks = static_cast<int>(brought_.size());
    gives_.emplace_back(o.input, o.input_counts, ranks);
    takes_.emplace_back(o.output, o.output_counts, ranks);
  }
  for (size_t from = 0; from < gives_.size(); ++from) {
    for (size_t to = 0; to < takes_.size(); ++to) {
      const int64_t given = gives_[from].count(to), taken = takes_[to].count(from);
      if (given == taken) continue;
      return explain(
          concat("rank ", from, " gives rank ", to, " ", given, " elements, which takes ", taken));
    }
  }
  return std::nullopt;
}

const LoggedCall& LocalCollective::any_call() const {
  const auto first =
      std::ranges::find_if(brought_, [](const auto& each) { return each.has_value(); });
  return (*first)->call;
}

void LocalCollective::plan() {
  const Operation& first = brought_.front()->operation;
  const int64_t ranks = count();
  kind_ = first.kind;
  if (kind_ == OperationKind::kBarrier) return;
  dtype_ = first.tensor().scalar_type();
  reduce_ = first.reduce;
  root_ = first.peer;
  part_ = part_of(first, ranks);
  int64_t elements = part_ * ranks;
  for (const auto& each : brought_) {
    const at::Tensor &output = each->operation.output, &input = each->operation.input;
    inputs_.push_back(input.defined() ? static_cast<const char*>(input.const_data_ptr()) : nullptr);
    outputs_.push_back(output.defined() ? static_cast<char*>(output.data_ptr()) : nullptr);
  }
  int64_t parts = 1;
  switch (kind_) {
    case OperationKind::kAllReduce:
      parts = ranks == 1 ? 0 : 1;
      break;
    case OperationKind::kBroadcast:
      parts = ranks;
      break;
    case OperationKind::kAllGather:
    case OperationKind::kReduceScatter:
      parts = ranks;
      elements *= ranks;
      break;
    case OperationKind::kAllToAll:
      parts = ranks * ranks;
      elements = part_ = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t given = gives_[part / ranks].count(part % ranks);
        part_ = std::max(part_, given);
        elements += given;
      }
      break;
    case OperationKind::kSend:
    case OperationKind::kRecv:
    case OperationKind::kBarrier:
      break;
  }
  units_per_part_ = (part_ + kUnitElements - 1) / kUnitElements;
  unit_count_ = parts * units_per_part_;
  bytes_ = elements * static_cast<int64_t>(c10::elementSize(dtype_));
}

void LocalCollective::run_unit(int64_t unit) {
  const int64_t ranks = count();
  const int64_t part = unit / units_per_part_;
  const int64_t begin = unit % units_per_part_ * kUnitElements;
  const int64_t elements = std::min(kUnitElements, part_ - begin);
  const int64_t part_begin = part * part_ + begin;
  const auto copy = [&](char* to, int64_t to_begin, const char* from, int64_t from_begin,
                        int64_t copied) {
    const int64_t size = static_cast<int64_t>(c10::elementSize(dtype_));
    to += to_begin * size;
    from += from_begin * size;
    if (to != from) std::memcpy(to, from, copied * size);
  };
  switch (kind_) {
    case OperationKind::kAllReduce: {
      std::vector<ReduceInput> inputs;
      std::vector<ReduceOutput> outputs;
      for (int64_t r = 0; r < ranks; ++r) {
        inputs.push_back({outputs_[r], begin});
        outputs.push_back({outputs_[r], begin});
      }
      return reduce_elements(dtype_, reduce_, inputs, outputs, elements);
    }
    case OperationKind::kReduceScatter: {
      std::vector<ReduceInput> inputs;
      for (int64_t r = 0; r < ranks; ++r) inputs.push_back({inputs_[r], part_begin});
      const ReduceOutput output{outputs_[part], begin};
      return reduce_elements(dtype_, reduce_, inputs, {&output, 1}, elements);
    }
    case OperationKind::kAllGather:
      for (int64_t r = 0; r < ranks; ++r) {
        copy(outputs_[r], part_begin, inputs_[part], begin, elements);
      }
      return;
    case OperationKind::kAllToAll: {
      const int64_t from = part / ranks, to = part % ranks;
      const int64_t copied = std::min(elements, gives_[from].count(to) - begin);
      if (copied <= 0) return;
      return copy(outputs_[to], takes_[to].begin(from) + begin, inputs_[from],
                  gives_[from].begin(to) + begin, copied);
    }
    case OperationKind::kBroadcast:
      return copy(outputs_[part], begin, outputs_[root_], begin, elements);
    case OperationKind::kSend:
    case OperationKind::kRecv:
      return copy(outputs_[1], begin, inputs_[0], begin, elements);
    case OperationKind::kBarrier:
      return;
  }
}

void LocalCollective::run_units() {
  while (true) {
    const int64_t unit = next_unit_.fetch_add(1);
    if (unit >= unit_count_) return;
    run_unit(unit);
    if (units_done_.fetch_add(1) + 1 == unit_count_) finish(std::nullopt);
  }
}

void LocalCollective::finish(const std::optional<Error>& error) {
  std::lock_guard lock(mutex_);
  if (state_ == State::kFailed || (error && state_ != State::kGathering)) return;
  for (const auto& each : brought_) {
    if (each) each->call.ended(!error);
  }
  error_ = error;
  state_ = error ? State::kFailed : State::kDone;
  changed_.notify_all();
}

void LocalCollective::fail(const Error& error) { finish(error); }

void LocalCollective::fail_because(const std::string& cause) {
  Call call;
  {
    std::lock_guard lock(mutex_);
    call = any_call().text();
  }
  finish(job_->explain(cause, call, 0));
}

void LocalCollective::wait(int participant) {
  const ScopedLeaseRelease given_up;  // a missing rank may need the device
  std::unique_lock lock(mutex_);
  const auto timeout = collective_timeout();
  if (!changed_.wait_for(lock, timeout, [&] { return state_ != State::kGathering; })) {
    const Call call = brought_[participant]->call.text();
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
  if (brought_[participant]) {
    brought_[participant]->operation.input.reset();
    brought_[participant]->operation.output.reset();
  }
  if (state_ == State::kFailed) fail_with(*error_);
}

}  // namespace tessera::local
