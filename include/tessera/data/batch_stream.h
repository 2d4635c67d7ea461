// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Batch stream: a data loader's steps, prepared ahead on a thread of their own.
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

/// Prefetching wrapper of a DataLoader: gives the loader's steps in the same order. Used by one
/// thread.
class BatchStream {
 public:
  /// ahead: number of steps kept ready. device: GPU for whose copies pinned batches are allocated.
  explicit BatchStream(DataLoader loader, at::Device device = at::kCPU, size_t ahead = 2);
  ~BatchStream();
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  std::vector<MicroBatch> next();  ///< the next step's micro-batches; rethrows the loader's errors
  /// The loader's state before the step that next() returns next, however far ahead the thread is.
  const DataLoaderState& state() const { return state_; }

 private:
  struct Step {
    std::vector<MicroBatch> micro_batches;
    DataLoaderState after;
  };
  void prepare();

  DataLoader loader_;  ///< used by the thread alone
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
