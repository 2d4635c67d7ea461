// SPDX-License-Identifier: MIT
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "lib/core/clock.h"
#include "lib/core/number_text.h"

namespace tessera::testing {

// Ends the process and prints the running case when it exceeds its time: a hang outside operations
// with timeouts.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : seconds_(seconds), thread_([this] { watch(); }) {}
  ~Watchdog() {
    start("");
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void start(const std::string& line) {
    const std::lock_guard lock(mutex_);
    line_ = line;
    since_ = now_s();
    changed_.notify_all();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      changed_.wait_for(lock, std::chrono::seconds(1));
      if (line_.empty() || now_s() - since_ < seconds_) continue;
      const std::string text = printed("hang: no end within %.0f s\n  fuzz_layouts --case '%s'\n",
                                       seconds_, line_.c_str());
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
      std::_Exit(3);
    }
  }

  const double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string line_;
  double since_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace tessera::testing
