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

// Processors the calling thread may run on, ascending.
std::vector<int> allowed_cores();
// The allowed processors on the device's NUMA node, neighbours adjacent. All allowed ones if the
// node is unknown, and for the CPU.
std::vector<int> cores_near(at::Device device);
// Part `index` of `count` equal parts of the cores. All cores when there are fewer than parts: a
// thread bound to one core would wait for others there, while cores are free.
std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count);
// Binds the thread; memory it touches first then comes from these cores' NUMA node. No effect where
// the system refuses.
void bind_this_thread(const std::vector<int>& cores);

// A fixed pool of threads for parallel loops; used by one thread at a time.
class HostThreads {
 public:
  // threads: includes the caller of run(), which is not bound here.
  HostThreads(int threads, std::vector<int> cores);
  ~HostThreads();
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;

  const std::vector<int>& cores() const { return cores_; }
  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Calls fn(i) for every i below count, in any order on any thread. Returns when all are done.
  // Rethrows the first exception, after which further calls are skipped.
  void run(int64_t count, const std::function<void(int64_t)>& fn);

 private:
  void work();
  void take_part();

  const std::vector<int> cores_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  const std::function<void(int64_t)>* fn_ = nullptr;  // function of the current loop
  int64_t next_ = 0, count_ = 0;
  uint64_t loops_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace tessera
