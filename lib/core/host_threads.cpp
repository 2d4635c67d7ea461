// SPDX-License-Identifier: MIT
#include "lib/core/host_threads.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "lib/core/device_driver.h"
#include "lib/core/host_topology.h"

namespace tessera {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::vector<int> cores_near(at::Device device) {
  return cores_near_pci(pci_address(device), allowed_cores());
}

std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count) {
  const auto size = static_cast<int64_t>(cores.size());
  if (size < count) return cores;
  return {cores.begin() + size * index / count, cores.begin() + size * (index + 1) / count};
}

void bind_this_thread(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

HostThreads::HostThreads(int threads, std::vector<int> cores) : cores_(std::move(cores)) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

HostThreads::~HostThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  started_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void HostThreads::run(int64_t count, const std::function<void(int64_t)>& fn) {
  {
    const std::lock_guard lock(mutex_);
    fn_ = &fn;
    next_ = 0;
    count_ = count;
    ++loops_;
    busy_ = static_cast<int>(threads_.size());
  }
  started_.notify_all();
  take_part();
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void HostThreads::take_part() {
  for (;;) {
    int64_t mine = 0;
    {
      const std::lock_guard lock(mutex_);
      if (next_ >= count_) return;
      mine = next_++;
    }
    try {
      (*fn_)(mine);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = count_;
    }
  }
}

void HostThreads::work() {
  bind_this_thread(cores_);
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    started_.wait(lock, [&] { return stop_ || loops_ != done; });
    if (stop_) return;
    done = loops_;
    lock.unlock();
    take_part();
    lock.lock();
    if (--busy_ == 0) finished_.notify_one();
  }
}

}  // namespace tessera
