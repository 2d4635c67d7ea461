#include "lib/comm/nccl/nccl_handle.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::nccl {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  return concat(ncclGetErrorString(result), " (", ncclGetLastError(comm), ")");
}

// Runs what waits for peers on a thread of its own; gives up on it when the job is aborted.
ncclComm_t set_up(const char* what, const AbortSignal& signal,
                  std::function<ncclResult_t(ncclComm_t*)> fn) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    ncclResult_t result = ncclSuccess;
    ncclComm_t comm = nullptr;
  };
  auto state = std::make_shared<State>();
  int device = 0;
  cudaGetDevice(&device);
  std::thread([state, device, fn = std::move(fn)] {
    cudaSetDevice(device);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = fn(&comm);
    std::lock_guard lock(state->mutex);
    state->comm = comm;
    state->result = result;
    state->done = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  while (!state->changed.wait_for(lock, kInterval, [&] { return state->done; })) {
    signal.throw_if_raised();
  }
  if (state->result != ncclSuccess) signal.throw_if_raised();  // the abort is the reason
  check(state->result == ncclSuccess, ErrorCode::kUnavailable, what,
        " failed: ", text_of(state->result, nullptr));
  return state->comm;
}

}  // namespace

Handle::Handle(const ncclUniqueId& id, int rank, int size,
               std::shared_ptr<const AbortSignal> signal, int channels)
    : signal_(std::move(signal)) {
  cudaGetDevice(&device_);
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
  close();
  if (aborting_.joinable()) aborting_.join();
}

void Handle::close() {
  if (aborted_ || closed_) return;
  if (signal_->raised()) return abort();
  const std::lock_guard lock(mutex_);
  if (!aborted_ && !closed_.exchange(true)) ncclCommDestroy(comm_);
}

void Handle::require_alive() const {
  signal_->throw_if_raised();
  check(!aborted_ && !closed_, ErrorCode::kUnavailable, "the NCCL communicator was ",
        aborted_ ? "aborted" : "closed");
}

void Handle::check_result(ncclResult_t result, const char* what) const {
  if (result == ncclSuccess) return;
  signal_->throw_if_raised();  // the abort is the reason
  fail(ErrorCode::kUnavailable, what, " failed: ", text_of(result, nullptr));
}

void Handle::abort() {
  if (abort_begun_.exchange(true)) return;
  aborting_ = std::thread([this] {
    cudaSetDevice(device_);  // or this thread would make a context on GPU 0
    // A call that hangs is ended by the abort itself: then it is not waited for.
    const std::unique_lock lock(mutex_, std::chrono::seconds(2));
    if (!closed_ && !aborted_.exchange(true)) ncclCommAbort(comm_);
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

Watch::Watch(int device, std::shared_ptr<const AbortSignal> signal,
             std::function<void(const std::string&)> abort_job, std::chrono::seconds timeout)
    : device_(device),
      signal_(std::move(signal)),
      abort_job_(std::move(abort_job)),
      timeout_(timeout),
      thread_([this] { run(); }) {}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watch::add(std::weak_ptr<Handle> handle) {
  std::lock_guard lock(mutex_);
  std::erase_if(handles_, [](const auto& known) { return known.expired(); });
  handles_.push_back(std::move(handle));
}

std::shared_ptr<Watch::Operation> Watch::expect(std::string name,
                                                std::shared_ptr<at::cuda::CUDAEvent> done) {
  auto operation = std::make_shared<Operation>();
  operation->name = std::move(name);
  operation->done = std::move(done);
  std::lock_guard lock(mutex_);
  expected_.push_back(operation);
  return operation;
}

void Watch::run() {
  cudaSetDevice(device_);  // or this thread would make a context on GPU 0
  // Event queries of this thread must not disturb a graph capture of another.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kInterval, [&] { return stopping_; });
    lock.unlock();
    look();
    lock.lock();
  }
}

void Watch::look() {
  std::vector<std::shared_ptr<Handle>> handles;
  std::string overdue;
  {
    std::lock_guard lock(mutex_);
    for (const auto& handle : handles_) {
      if (auto alive = handle.lock()) handles.push_back(std::move(alive));
    }
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(expected_,
                  [](const auto& each) { return each->recorded && each->done->query(); });
    if (!expected_.empty() && now - expected_.front()->since > timeout_) {
      overdue = expected_.front()->name;
    }
  }
  if (!overdue.empty() && !signal_->raised()) {
    abort_job_(concat(overdue, " did not end within ", timeout_.count(),
                      " s; a rank is stuck or called something else"));
  }
  for (const auto& handle : handles) {
    if (signal_->raised()) {
      handle->abort();
    } else if (const std::string error = handle->asynchronous_error(); !error.empty()) {
      abort_job_("NCCL: " + error);
    }
  }
}

}  // namespace tessera::nccl
