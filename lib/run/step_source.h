// SPDX-License-Identifier: MIT
#pragma once
// The data of a run as optimizer steps.
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera::programs {

// One data set's steps in order, as one rank takes part in them. Used by one thread.
class StepSource {
 public:
  virtual ~StepSource() = default;

  virtual int64_t global_batch_size() const = 0;  // rows
  virtual int64_t steps_per_epoch() const = 0;
  virtual std::vector<MicroBatch> next() = 0;
  // Before the step that next() gives next.
  virtual DataLoaderState state() const = 0;
  // Before the first next().
  virtual void restore(const DataLoaderState& state) = 0;
};

// device: whose memory pinned batches go to. Batches are prepared ahead, on a thread.
std::unique_ptr<StepSource> loaded_steps(TokenTable rows, const DataLoaderOptions& options,
                                         at::Device device);

}  // namespace tessera::programs
