#include "lib/comm/nccl/nccl_handle.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::nccl {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  return concat(ncclGetErrorString(result), " (", ncclGetLastError(comm), ")");
}

}  // namespace

ncclConfig_t non_blocking_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

Handle::Handle(const ncclUniqueId& id, int rank, int size,
               std::shared_ptr<const AbortSignal> signal)
    : signal_(std::move(signal)) {
  ncclConfig_t config = non_blocking_config();
  check_result(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig");
  settle("ncclCommInitRankConfig");
}

Handle::Handle(ncclComm_t comm, std::shared_ptr<const AbortSignal> signal)
    : comm_(comm), signal_(std::move(signal)) {
  settle("ncclCommSplit");
}

Handle::~Handle() {
  if (aborted_ || comm_ == nullptr) return;
  try {
    call("ncclCommFinalize", [](ncclComm_t comm) { return ncclCommFinalize(comm); });
    ncclCommDestroy(comm_);
  } catch (const Error&) {
    abort();
  }
}

void Handle::require_alive() const {
  signal_->throw_if_raised();
  check(!aborted_, ErrorCode::kUnavailable, "the NCCL communicator was aborted");
}

void Handle::check_result(ncclResult_t result, const char* what) const {
  check(result == ncclSuccess || result == ncclInProgress, ErrorCode::kUnavailable, what,
        " failed: ", text_of(result, comm_));
}

void Handle::settle(const char* what) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      require_alive();
      ncclResult_t state = ncclSuccess;
      check_result(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      check_result(state, what);
      if (state == ncclSuccess) return;
    }
    sched_yield();
  }
}

void Handle::abort() {
  std::lock_guard lock(mutex_);
  if (std::exchange(aborted_, true)) return;
  ncclCommAbort(comm_);
}

std::string Handle::asynchronous_error() {
  std::lock_guard lock(mutex_);
  if (aborted_) return "";
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

void Watch::expect(std::string name, std::shared_ptr<at::cuda::CUDAEvent> done) {
  std::lock_guard lock(mutex_);
  expected_.push_back({std::move(name), std::move(done), std::chrono::steady_clock::now()});
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
    std::erase_if(expected_, [](const Expected& each) { return each.done->query(); });
    if (!expected_.empty() && now - expected_.front().since > timeout_) {
      overdue = expected_.front().name;
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
