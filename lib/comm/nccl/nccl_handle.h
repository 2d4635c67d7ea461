// SPDX-License-Identifier: MIT
#pragma once
// An NCCL communicator that can be waited for and aborted from any thread, and the thread that
// watches them all.
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
#include "lib/comm/operation_log.h"

namespace tessera::nccl {

// [Note: blocking NCCL] NCCL's non-blocking mode starts a thread for every operation, so ours is
// the blocking one. Set-up, which waits for peers, runs on a helper thread that is left behind when
// the job is aborted; operations only enqueue, but for their first connection.
class Handle {
 public:
  // Collective over the ranks that know the id; returns when all have come. Its operations use at
  // most `channels` channels, of which each takes a multiprocessor; 0: as many as NCCL likes.
  Handle(const ncclUniqueId& id, int rank, int size, std::shared_ptr<const AbortSignal> signal,
         int channels = 0);
  // Collective over parent's ranks: the part of this color.
  Handle(Handle& parent, int color, int key);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Runs fn(ncclComm_t) -> ncclResult_t, which enqueues work. Throws Error(kUnavailable).
  template <typename Fn>
  void call(const char* what, Fn fn) {
    std::lock_guard lock(mutex_);
    require_alive();
    check_result(fn(comm_), what);
  }

  // The owner's last call, with the stream of its operations. It waits for them and then for NCCL,
  // whose ranks may wait for each other, but for no longer than the timeout or until the job ends:
  // operations that still run are then aborted, and NCCL is left behind.
  void close(cudaStream_t stream, std::chrono::seconds timeout);

  // Any thread; returns at once. Ending a communicator waits for the device, on which another one's
  // operation may be what never ends: each is ended on a thread of its own.
  void abort();
  std::string asynchronous_error();  // empty: none

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

// Making an event and letting go of it are calls of the driver: one that nobody refers to any more
// serves a later operation. Any thread.
class EventPool {
 public:
  // Not while a graph is captured, which keeps its events.
  std::shared_ptr<at::cuda::CUDAEvent> take();

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<at::cuda::CUDAEvent>> events;
  };
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

// Reports errors and overdue operations, and aborts all handles when the job's signal is raised:
// their kernels end and streams run on.
//
// [Note: a driver that waits] While a thread copies to pageable memory behind an operation that
// never ends (tensor.cpu()), other threads that create, record or destroy an event wait with it. So
// one thread asks the GPU what has ended and lets go of events; another one, which does nothing of
// that, keeps the time and aborts.
class Watch {
 public:
  Watch(int device, std::shared_ptr<const AbortSignal> signal, ReportFailure report,
        std::chrono::seconds timeout);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(std::weak_ptr<Handle> handle);
  // An operation that is about to be enqueued, which may itself wait for peers (first connections).
  // Its owner records done at its end and then sets recorded; one that was not enqueued is dropped.
  struct Operation {
    std::vector<LoggedCall> calls;
    std::shared_ptr<at::cuda::CUDAEvent> done;
    cudaStream_t stream = nullptr;  // its operations end in the order in which they are expected
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    std::atomic<bool> recorded{false}, dropped{false}, over{false};
  };
  std::shared_ptr<Operation> expect(std::vector<LoggedCall> calls,
                                    std::shared_ptr<at::cuda::CUDAEvent> done, cudaStream_t stream);
  EventPool& events() { return events_; }
  std::chrono::seconds timeout() const { return timeout_; }

 private:
  // A thread that calls fn every now and then.
  std::thread repeat(std::function<void()> fn);
  void keep_time();
  void ask_device();
  // Those of one stream, in order: finds which have ended, and says so in the log.
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
  std::deque<std::shared_ptr<Operation>> expected_;
  std::string device_error_;
  EventPool events_;
  std::thread asking_, timing_;
};

}  // namespace tessera::nccl
