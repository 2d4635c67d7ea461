// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/nccl_handle.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>

#include "tessera/core/error.h"

namespace tessera::nccl {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);
constexpr auto kPatience = std::chrono::seconds(3);

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  return concat(ncclGetErrorString(result), " (", ncclGetLastError(comm), ")");
}

// A call that waits for peers, on a thread that is abandoned if it does not end.
class Apart {
 public:
  Apart(int device, std::function<ncclResult_t(ncclComm_t*)> fn)
      : state_(std::make_shared<State>()) {
    std::thread([state = state_, device, fn = std::move(fn)] {
      cudaSetDevice(device);
      ncclComm_t comm = nullptr;
      const ncclResult_t result = fn(&comm);
      std::lock_guard lock(state->mutex);
      state->comm = comm;
      state->result = result;
      state->done = true;
      state->changed.notify_all();
    }).detach();
  }
  // True if the call ends within this time.
  bool ends_within(std::chrono::milliseconds time) const {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, time, [&] { return state_->done; });
  }
  ncclResult_t result() const { return state_->result; }
  ncclComm_t comm() const { return state_->comm; }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    ncclResult_t result = ncclSuccess;
    ncclComm_t comm = nullptr;
  };
  std::shared_ptr<State> state_;
};

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

ncclComm_t set_up(const char* what, const AbortSignal& signal,
                  std::function<ncclResult_t(ncclComm_t*)> fn) {
  const Apart call(current_device(), std::move(fn));
  while (!call.ends_within(kInterval)) signal.throw_if_raised();
  if (call.result() != ncclSuccess) signal.throw_if_raised();  // reports the abort's reason
  check(call.result() == ncclSuccess, ErrorCode::kUnavailable, what,
        " failed: ", text_of(call.result(), nullptr));
  return call.comm();
}

}  // namespace

Handle::Handle(const ncclUniqueId& id, int rank, int size,
               std::shared_ptr<const AbortSignal> signal, int channels)
    : device_(current_device()), signal_(std::move(signal)) {
  comm_ = set_up("ncclCommInitRank", *signal_, [=](ncclComm_t* comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (channels > 0) config.minCTAs = 1, config.maxCTAs = channels;
    return ncclCommInitRankConfig(comm, size, id, rank, &config);
  });
}

Handle::Handle(Handle& parent, int color, int key)
    : device_(parent.device_), signal_(parent.signal_) {
  const ncclComm_t whole = parent.comm_;
  comm_ = set_up("ncclCommSplit", *signal_,
                 [=](ncclComm_t* comm) { return ncclCommSplit(whole, color, key, comm, nullptr); });
}

Handle::~Handle() {
  if (!closed_) abort();
  if (aborting_.joinable()) aborting_.join();
}

void Handle::close(cudaStream_t stream, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto in_vain = [&] {
    return signal_->raised() || std::chrono::steady_clock::now() >= deadline;
  };
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (in_vain()) return abort();
    std::this_thread::yield();
  }
  if (signal_->raised()) return abort();
  const std::lock_guard lock(mutex_);
  if (abort_begun_.exchange(true)) return;
  closed_ = true;
  const Apart destroy(device_, [comm = comm_](ncclComm_t*) { return ncclCommDestroy(comm); });
  while (!destroy.ends_within(kInterval)) {
    if (in_vain()) return;  // none of its work runs on the device any more
  }
}

void Handle::require_alive() const {
  signal_->throw_if_raised();
  check(!aborted_ && !closed_, ErrorCode::kUnavailable, "the NCCL communicator was ",
        aborted_ ? "aborted" : "closed");
}

void Handle::check_result(ncclResult_t result, const char* what) const {
  if (result == ncclSuccess) return;
  signal_->throw_if_raised();  // reports the abort's reason
  fail(ErrorCode::kUnavailable, what, " failed: ", text_of(result, nullptr));
}

void Handle::abort() {
  if (abort_begun_.exchange(true)) return;
  aborting_ = std::thread([this] {
    cudaSetDevice(device_);  // avoids a new context on GPU 0
    // The abort itself ends a hanging call. A call that connects to a dead peer must end first, or
    // it would use freed memory: [Note: a peer that refuses].
    const std::unique_lock lock(mutex_, kPatience);
    if (!aborted_.exchange(true)) ncclCommAbort(comm_);
  });
}

std::string Handle::asynchronous_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_ || closed_) return "";
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  if (result == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) return "";
  return text_of(result == ncclSuccess ? state : result, comm_);
}

std::shared_ptr<at::cuda::CUDAEvent> EventPool::take() {
  std::unique_ptr<at::cuda::CUDAEvent> event;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->events.empty()) {
      event = std::move(free_->events.back());
      free_->events.pop_back();
    }
  }
  if (event == nullptr) event = std::make_unique<at::cuda::CUDAEvent>();
  return {event.release(), [free = free_](at::cuda::CUDAEvent* used) {
            std::unique_ptr<at::cuda::CUDAEvent> back(used);
            const std::lock_guard lock(free->mutex);
            free->events.push_back(std::move(back));
          }};
}

Watch::Watch(int device, std::shared_ptr<const AbortSignal> signal, ReportFailure report,
             std::chrono::seconds timeout)
    : device_(device),
      signal_(std::move(signal)),
      report_(std::move(report)),
      timeout_(timeout),
      asking_(repeat([this] { ask_device(); })),
      timing_(repeat([this] { keep_time(); })) {}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  timing_.join();
  asking_.join();
}

void Watch::add(std::weak_ptr<Handle> handle) {
  std::lock_guard lock(mutex_);
  std::erase_if(handles_, [](const auto& known) { return known.expired(); });
  handles_.push_back(std::move(handle));
}

void Watch::add(std::shared_ptr<PeerCopies> copies) {
  std::lock_guard lock(mutex_);
  std::erase_if(copies_, [](const auto& known) { return known->closed(); });
  copies_.push_back(std::move(copies));
}

std::shared_ptr<Watch::Operation> Watch::expect(std::vector<LoggedCall> calls,
                                                std::shared_ptr<at::cuda::CUDAEvent> done,
                                                cudaStream_t stream) {
  auto operation = std::make_shared<Operation>();
  operation->calls = std::move(calls);
  operation->done = std::move(done);
  operation->stream = stream;
  std::lock_guard lock(mutex_);
  expected_.push_back(operation);
  return operation;
}

std::thread Watch::repeat(std::function<void()> fn) {
  return std::thread([this, fn = std::move(fn)] {
    cudaSetDevice(device_);  // avoids a new context on GPU 0
    // Lets this thread query events during another thread's graph capture.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      changed_.wait_for(lock, kInterval, [&] { return stopping_; });
      lock.unlock();
      try {
        fn();
      } catch (const std::exception& error) {  // such as out of memory
        fail({}, concat("the thread that watches NCCL has failed: ", error.what()));
      }
      lock.lock();
    }
  });
}

void Watch::fail(const LoggedCall& call, const std::string& cause) {
  if (!signal_->raised()) report_(call, cause);
}

// Queries few events: each takes the driver's lock, which the issuing thread also needs.
void Watch::settle(const std::vector<Operation*>& operations) {
  const auto has_ended = [](const Operation* operation) {
    return operation->recorded && operation->done->query();
  };
  const auto open = std::partition_point(operations.begin(), operations.end(), has_ended);
  for (auto ended = operations.begin(); ended != open; ++ended) {
    for (const LoggedCall& call : (*ended)->calls) call.ended();
    (*ended)->over = true;
  }
}

void Watch::ask_device() {
  if (signal_->raised()) return;
  std::deque<std::shared_ptr<Operation>> expected;
  {
    const std::lock_guard lock(mutex_);
    expected = expected_;
  }
  try {
    std::map<cudaStream_t, std::vector<Operation*>> streams;
    for (const auto& operation : expected) {
      if (operation->dropped) {
        operation->over = true;
      } else {
        streams[operation->stream].push_back(operation.get());
      }
    }
    for (const auto& [stream, operations] : streams) settle(operations);
  } catch (const std::exception& error) {  // a device error, which every later call repeats
    const std::lock_guard lock(mutex_);
    device_error_ = concat("the GPU refuses to say whether it has ended: ", error.what());
  }
  const std::lock_guard lock(mutex_);  // released before `expected` and its events
  std::erase_if(expected_, [](const auto& operation) { return operation->over.load(); });
}

void Watch::keep_time() {
  std::vector<std::shared_ptr<Handle>> handles;
  std::vector<std::shared_ptr<PeerCopies>> copies;
  LoggedCall first;
  std::string cause;
  bool overdue = false;
  {
    std::lock_guard lock(mutex_);
    for (const auto& handle : handles_) {
      if (auto alive = handle.lock()) handles.push_back(std::move(alive));
    }
    copies = copies_;
    cause = device_error_;
    const auto oldest =
        std::ranges::find_if(expected_, [](const auto& each) { return !each->over; });
    if (oldest != expected_.end()) {
      first = (*oldest)->calls.front();
      overdue = std::chrono::steady_clock::now() - (*oldest)->since > timeout_;
    }
  }
  for (const auto& handle : handles) {
    if (!cause.empty()) break;
    if (const std::string error = handle->asynchronous_error(); !error.empty()) {
      cause = "NCCL: " + error;
    }
  }
  if (overdue || !cause.empty()) fail(first, cause);
  if (!signal_->raised()) return;
  for (const auto& each : copies) {
    if (!each->closed()) each->release();
  }
  for (const auto& handle : handles) handle->abort();
}

}  // namespace tessera::nccl
