// SPDX-License-Identifier: MIT
#pragma once
// Output shapes of a model's blocks, on meta tensors.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// For one rank of a tensor axis. Runs the blocks in order, equal ones once.
class BlockOutputs {
 public:
  BlockOutputs(const ModelSpec& model, int tensor_ranks, int tensor_rank,
               const ParallelConfig& parallel);
  ~BlockOutputs();
  // micro_batch: on the meta device.
  at::Tensor of(size_t block, const MicroBatch& micro_batch);

 private:
  using Shape = std::vector<int64_t>;  // shapes of all tensors of a micro-batch

  bool is_equal(size_t a, size_t b) const;

  ModelSpec model_;
  at::ScalarType dtype_;
  std::unique_ptr<Communicator> axis_;
  std::map<Shape, std::vector<at::Tensor>> outputs_;
};

}  // namespace tessera
