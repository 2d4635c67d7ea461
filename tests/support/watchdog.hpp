// SPDX-License-Identifier: MIT
#pragma once
// Ends the test program on a hang, which makes it a failed test.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace tessera::test {

// Time limit for `what` while it lives.
class Watchdog {
 public:
  Watchdog(std::string what, std::chrono::seconds limit)
      : thread_([this, limit, what = std::move(what)] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, limit, [this] { return done_; })) return;
          std::fprintf(stderr, "FAILED: %s hangs\n", what.c_str());
          std::abort();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

// Sets the timeout of this process's collectives; call before the first of them.
inline void limit_collectives(int seconds) {
  setenv("TESSERA_COLLECTIVE_TIMEOUT_S", std::to_string(seconds).c_str(), /*overwrite=*/1);
}

}  // namespace tessera::test
