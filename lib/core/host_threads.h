// SPDX-License-Identifier: MIT
#pragma once
// Threads for work on host memory, bound to the cores that belong to this rank.
#include <c10/core/Device.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// Processors that the calling thread may run on, in increasing order.
std::vector<int> allowed_cores();
// Those of them on the device's NUMA node, neighbours side by side; all of them where that is
// unknown, or for the CPU.
std::vector<int> cores_near(at::Device device);
// The index-th of `count` equal parts of the cores; all of them where there are fewer than parts: a
// thread held to one core waits for whatever else runs there, though others be free.
std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count);
// Memory that the thread touches first then comes from these cores' part of the machine. Does
// nothing where the system refuses.
void bind_this_thread(const std::vector<int>& cores);

// A fixed set of threads that share loops. Used by one thread at a time.
class HostThreads {
 public:
  // threads includes the caller of run(), which binds itself if it wants to.
  HostThreads(int threads, std::vector<int> cores);
  ~HostThreads();
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;

  const std::vector<int>& cores() const { return cores_; }
  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // fn(i) for every i below count, in any order on any thread. Returns when all are done; throws
  // what the first failing call threw, after which further calls are left out.
  void run(int64_t count, const std::function<void(int64_t)>& fn);

 private:
  void work();
  void take_part();

  const std::vector<int> cores_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  const std::function<void(int64_t)>* fn_ = nullptr;  // of the loop under way
  int64_t next_ = 0, count_ = 0;
  uint64_t loops_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace tessera
