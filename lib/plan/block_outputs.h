// SPDX-License-Identifier: MIT
#pragma once
// What the blocks of a model give, without memory.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Of one rank of a tensor axis. Runs the blocks in order on meta tensors, equal ones
// once.
class BlockOutputs {
 public:
  BlockOutputs(const ModelSpec& model, int tensor_ranks, int tensor_rank,
               const ParallelConfig& parallel);
  ~BlockOutputs();
  // For a micro-batch on meta.
  at::Tensor of(size_t block, const MicroBatch& micro_batch);

 private:
  using Shape = std::vector<int64_t>;  // of everything that a micro-batch has

  bool is_equal(size_t a, size_t b) const;

  ModelSpec model_;
  at::ScalarType dtype_;
  std::unique_ptr<Communicator> axis_;
  std::map<Shape, std::vector<at::Tensor>> outputs_;
};

}  // namespace tessera
