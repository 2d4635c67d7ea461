// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A data loader's steps, prepared on a thread ahead of the one that trains.
#include <c10/core/Device.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera {

/// Gives what the loader's next() would, in the same order. Used by one thread.
class BatchStream {
 public:
  /// ahead: steps kept ready. device: whose memory pinned batches go to.
  explicit BatchStream(DataLoader loader, at::Device device = at::kCPU, size_t ahead = 2);
  ~BatchStream();
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  std::vector<MicroBatch> next();  ///< throws what the loader threw
  /// The loader's before the step that next() gives next, however far ahead the thread is.
  const DataLoaderState& state() const { return state_; }

 private:
  struct Step {
    std::vector<MicroBatch> micro_batches;
    DataLoaderState after;
  };
  void prepare();

  DataLoader loader_;  ///< the thread's
  const at::Device device_;
  const size_t ahead_;
  DataLoaderState state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera
