// SPDX-License-Identifier: MIT
#include "tessera/data/batch_stream.h"

#include <utility>

#include "tessera/core/device.h"

namespace tessera {

BatchStream::BatchStream(DataLoader loader, at::Device device, size_t ahead)
    : loader_(std::move(loader)),
      device_(device),
      ahead_(ahead),
      state_(loader_.state()),
      thread_([this] { prepare(); }) {}

BatchStream::~BatchStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchStream::prepare() {
  try {
    set_current_device(device_);  // otherwise pinned memory would create a context on the first GPU
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < ahead_; });
      if (stop_) return;
      lock.unlock();
      Step step{loader_.next(), loader_.state()};
      lock.lock();
      ready_.push_back(std::move(step));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

std::vector<MicroBatch> BatchStream::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_; });
  if (ready_.empty()) std::rethrow_exception(error_);
  Step step = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  state_ = step.after;
  return std::move(step.micro_batches);
}

}  // namespace tessera
