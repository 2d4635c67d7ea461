// SPDX-License-Identifier: MIT
#pragma once
// Abort flag of a job, seen by every communicator of the process.
#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "tessera/core/error.h"

namespace tessera {

class AbortSignal {
 public:
  // Only the first reason is kept. Any thread.
  void raise(const std::string& reason, ErrorCode code = ErrorCode::kUnavailable) {
    std::lock_guard lock(mutex_);
    if (raised_) return;
    reason_ = reason;
    code_ = code;
    raised_ = true;
  }
  bool raised() const { return raised_; }
  void throw_if_raised() const {
    if (!raised_) return;
    std::lock_guard lock(mutex_);
    fail(code_, reason_);
  }
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  std::string reason_;
  ErrorCode code_ = ErrorCode::kUnavailable;
};

}  // namespace tessera
