// SPDX-License-Identifier: MIT
#pragma once
// An NCCL communicator that any thread can wait for or abort, and the watchdog thread of all of
// them.
#include <ATen/cuda/CUDAEvent.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/nccl/peer_copies.h"
#include "lib/comm/operation_log.h"

namespace tessera::nccl {

// [Note: blocking NCCL]
// NCCL's non-blocking mode starts a thread for every operation, so communicators are blocking.
// Set-up waits for peers on a helper thread, which is abandoned when the job aborts. Operations
// only enqueue, except for their first connection.
class Handle {
 public:
  // Collective over the ranks with this id; returns when all have joined. channels: limit of
  // channels, each of which occupies a multiprocessor; 0: NCCL's choice.
  Handle(const ncclUniqueId& id, int rank, int size, std::shared_ptr<const AbortSignal> signal,
         int channels = 0);
  // Splits `parent`: the part of this color. Collective over its ranks.
  Handle(Handle& parent, int color, int key);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Runs fn(ncclComm_t) -> ncclResult_t, which enqueues work. Throws Error(kUnavailable) on
  // failure.
  template <typename Fn>
  void call(const char* what, Fn fn) {
    std::lock_guard lock(mutex_);
    require_alive();
    check_result(fn(comm_), what);
  }

  // Last call of the owner, with the stream of its operations. Waits for them and then for NCCL,
  // until the timeout or the job's abort. Then aborts what still runs and abandons the
  // communicator.
  void close(cudaStream_t stream, std::chrono::seconds timeout);

  // Any thread; returns at once. Aborting waits for the device, where another communicator's
  // operation may never end. So each is aborted on a thread of its own.
  void abort();
  std::string asynchronous_error();  // empty: no error

 private:
  void require_alive() const;
  void check_result(ncclResult_t result, const char* what) const;

  std::timed_mutex mutex_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> abort_begun_{false}, aborted_{false}, closed_{false};
  std::thread aborting_;
  int device_ = 0;
  const std::shared_ptr<const AbortSignal> signal_;
};

// Reuses CUDA events, since creating and destroying them takes the driver's lock. Any thread.
class EventPool {
 public:
  // Not during graph capture: the graph keeps its events.
  std::shared_ptr<at::cuda::CUDAEvent> take();

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<at::cuda::CUDAEvent>> events;
  };
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

// Watchdog: reports errors and overdue operations, and aborts all handles when the job's signal is
// raised. Aborted kernels end and their streams run on.
//
// [Note: a driver that waits]
// While a thread copies to pageable memory behind an operation that never ends (tensor.cpu()),
// other threads that create, record or destroy an event block too. So one thread queries the GPU
// and releases events. Another one does neither; it measures time and aborts.
class Watch {
 public:
  Watch(int device, std::shared_ptr<const AbortSignal> signal, ReportFailure report,
        std::chrono::seconds timeout);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(std::weak_ptr<Handle> handle);
  void add(std::shared_ptr<PeerCopies> copies);  // released after an abort, for ever
  // An operation about to be enqueued, which may wait for peers at first connections. The owner
  // records `done` at its end and then sets `recorded`; an operation that was not enqueued is
  // dropped.
  struct Operation {
    std::vector<LoggedCall> calls;
    std::shared_ptr<at::cuda::CUDAEvent> done;
    cudaStream_t stream = nullptr;  // operations on it end in the order of expect() calls
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    std::atomic<bool> recorded{false}, dropped{false}, over{false};
  };
  std::shared_ptr<Operation> expect(std::vector<LoggedCall> calls,
                                    std::shared_ptr<at::cuda::CUDAEvent> done, cudaStream_t stream);
  EventPool& events() { return events_; }
  std::chrono::seconds timeout() const { return timeout_; }

 private:
  // A thread that calls fn periodically.
  std::thread repeat(std::function<void()> fn);
  void keep_time();
  void ask_device();
  // Finds which operations of one stream, in order, have ended, and marks them in the log.
  static void settle(const std::vector<Operation*>& operations);
  void fail(const LoggedCall& call, const std::string& cause);

  const int device_;
  const std::shared_ptr<const AbortSignal> signal_;
  const ReportFailure report_;
  const std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<std::weak_ptr<Handle>> handles_;
  std::vector<std::shared_ptr<PeerCopies>> copies_;
  std::deque<std::shared_ptr<Operation>> expected_;
  std::string device_error_;
  EventPool events_;
  std::thread asking_, timing_;
};

}  // namespace tessera::nccl
