// SPDX-License-Identifier: MIT
#pragma once
// The data of a run as optimizer steps.
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera::programs {

// Steps of one data set in order, as one rank's share. Used by one thread.
class StepSource {
 public:
  virtual ~StepSource() = default;

  virtual int64_t global_batch_size() const = 0;  // in rows
  virtual int64_t steps_per_epoch() const = 0;
  virtual std::vector<MicroBatch> next() = 0;
  // State before the step that next() returns next.
  virtual DataLoaderState state() const = 0;
  // Call before the first next().
  virtual void restore(const DataLoaderState& state) = 0;
};

// device: target of pinned batches. A thread prepares batches ahead.
std::unique_ptr<StepSource> loaded_steps(TokenTable rows, const DataLoaderOptions& options,
                                         at::Device device);

}  // namespace tessera::programs
