// SPDX-License-Identifier: MIT
#include "lib/comm/mpi/mpi_runtime.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "lib/comm/reduce_kernels.h"
#include "tessera/core/error.h"

namespace tessera::mpi {
namespace {

constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                               at::kLong,  at::kInt,    at::kChar, at::kByte};
constexpr std::array kReductions = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};

template <at::ScalarType dtype, ReduceOp op>
void reduce_pair(void* in, void* inout, int* length, MPI_Datatype*) {
  const ReduceInput inputs[] = {{in, 0}, {inout, 0}};
  const ReduceOutput output{inout, 0};
  reduce_elements(dtype, op, inputs, {&output, 1}, *length);
}

template <at::ScalarType dtype>
MPI_User_function* pair_function(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_pair<dtype, ReduceOp::kSum>;
    case ReduceOp::kMax:
      return reduce_pair<dtype, ReduceOp::kMax>;
    case ReduceOp::kMin:
      return reduce_pair<dtype, ReduceOp::kMin>;
  }
  return nullptr;
}

MPI_User_function* pair_function(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return pair_function<at::kFloat>(op);
    case at::kDouble:
      return pair_function<at::kDouble>(op);
    case at::kHalf:
      return pair_function<at::kHalf>(op);
    case at::kBFloat16:
      return pair_function<at::kBFloat16>(op);
    case at::kLong:
      return pair_function<at::kLong>(op);
    case at::kInt:
      return pair_function<at::kInt>(op);
    case at::kChar:
      return pair_function<at::kChar>(op);
    default:
      return pair_function<at::kByte>(op);
  }
}

}  // namespace

void check_mpi(int rc, const char* call) {
  if (rc == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(rc, text, &length);
  fail(ErrorCode::kUnavailable, call, " failed: ", std::string(text, length));
}

MPI_Datatype mpi_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kHalf:
    case at::kBFloat16:
      return MPI_UINT16_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kChar:
      return MPI_INT8_T;
    default:
      return MPI_UINT8_T;
  }
}

bool is_initialised() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalised() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

int64_t received_bytes(const MPI_Status& status) {
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return bytes;
}

Runtime& Runtime::only() {
  static Runtime* runtime = new Runtime;  // never destroyed: MPI's own finalisation may come later
  return *runtime;
}

Runtime& Runtime::instance() {
  only().open();
  return only();
}

std::string Runtime::unusable_because() {
  if (is_finalised()) {
    return "MPI was finalised in this process and cannot be started again; make all jobs before "
           "MPI_Finalize, and initialise MPI before the first of several";
  }
  int level = MPI_THREAD_SERIALIZED;
  if (is_initialised()) MPI_Query_thread(&level);
  if (level >= MPI_THREAD_SERIALIZED) return "";
  return concat("MPI was initialised with thread level ", level,
                ", but tessera calls it from a thread of its own; use MPI_Init_thread() with "
                "MPI_THREAD_SERIALIZED (",
                MPI_THREAD_SERIALIZED, ") instead of MPI_Init(), or leave it to tessera");
}

void Runtime::open() {
  if (running_) return;
  std::lock_guard lock(mutex_);
  const auto require_usable = [] {
    const std::string reason = unusable_because();
    check(reason.empty(), ErrorCode::kInvalidArgument, reason);
  };
  require_usable();
  if (!is_initialised()) {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init");
    initialised_here_ = true;
    require_usable();
  }
  for (size_t i = own_reductions_.size(); i < kTypes.size() * kReductions.size(); ++i) {
    const auto function =
        pair_function(kTypes[i / kReductions.size()], kReductions[i % kReductions.size()]);
    MPI_Op own = MPI_OP_NULL;
    check_mpi(MPI_Op_create(function, /*commute=*/1, &own), "MPI_Op_create");
    own_reductions_.push_back(own);
  }
  running_ = true;
  driver_ = std::thread([this] { drive(); });
}

MPI_Op Runtime::reduction(at::ScalarType dtype, ReduceOp op) {
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (op == ReduceOp::kSum && !half) return MPI_SUM;
  const auto type = std::find(kTypes.begin(), kTypes.end(), dtype) - kTypes.begin();
  return own_reductions_[type * kReductions.size() + static_cast<size_t>(op)];
}

bool Runtime::test(Transfer& operation) {
  if (operation.done) return true;
  if (broken_) return false;
  int flag = 0;
  std::vector<MPI_Status> statuses(operation.requests.size());
  const int rc = MPI_Testall(static_cast<int>(operation.requests.size()), operation.requests.data(),
                             &flag, statuses.data());
  if (rc != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    int code = rc;
    for (const MPI_Status& each : statuses) {
      if (rc == MPI_ERR_IN_STATUS && each.MPI_ERROR != MPI_SUCCESS) code = each.MPI_ERROR;
    }
    MPI_Error_string(code, text, &length);
    operation.error = concat("MPI: ", std::string(text, length));
    broken_ = true;
    flag = 1;
  }
  if (flag == 0) return false;
  for (size_t i = 0; operation.error.empty() && i < operation.expected_bytes.size(); ++i) {
    const int64_t received = received_bytes(statuses[i]), expected = operation.expected_bytes[i];
    if (received == expected) continue;
    operation.error = concat("recv: ", received, " bytes arrived, expected ", expected,
                             "; sender and receiver must agree");
  }
  if (operation.error.empty() && operation.on_done) operation.on_done();
  operation.on_done = nullptr;
  operation.tensors.clear();
  operation.done = true;
  operation.call.ended(operation.error.empty());
  return true;
}

void Runtime::add(std::shared_ptr<Transfer> operation) {
  {
    std::lock_guard lock(mutex_);
    if (test(*operation)) return;
    pending_.push_back(std::move(operation));
  }
  changed_.notify_one();
}

bool Runtime::wait(Transfer& operation, const AbortSignal& signal, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (test(operation)) break;
    }
    signal.throw_if_raised();
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

// Progress thread: MPI makes progress only inside its calls. Polls less often the longer nothing
// completes.
void Runtime::drive() {
  constexpr auto kShortest = std::chrono::microseconds(50);
  constexpr auto kLongest = std::chrono::microseconds(1000);
  auto pause = kShortest;
  std::unique_lock lock(mutex_);
  while (running_) {
    if (pending_.empty()) {
      changed_.wait(lock, [&] { return !running_ || !pending_.empty(); });
      pause = kShortest;
      continue;
    }
    const size_t before = pending_.size();
    std::erase_if(pending_, [&](const auto& operation) { return test(*operation); });
    pause = pending_.size() < before ? kShortest : std::min(2 * pause, kLongest);
    changed_.wait_for(lock, pause);
  }
}

void Runtime::close(bool clean) { only().stop(clean); }

void Runtime::stop(bool clean) {
  {
    std::lock_guard lock(mutex_);
    if (!running_) return;
    running_ = false;
  }
  changed_.notify_all();
  driver_.join();
  std::lock_guard lock(mutex_);
  // Skipped after a failure: MPI_Finalize would wait for operations that never end.
  if (!clean || is_finalised()) return;
  for (MPI_Op& op : own_reductions_) MPI_Op_free(&op);
  own_reductions_.clear();
  if (initialised_here_) MPI_Finalize();
}

}  // namespace tessera::mpi
