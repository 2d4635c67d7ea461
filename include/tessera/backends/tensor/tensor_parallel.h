// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tensor parallelism (Shoeybi et al. 2019) under any strategy.
#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// Options of tensor parallelism.
struct TensorParallelOptions {
  bool sequence_parallel = false;  ///< norms and residuals on the rank's own tokens only
};

/// Model transform that builds each block for the tensor axis (BuildContext::tensor). Blocks
/// all-reduce activations in forward and backward, and state each parameter's placement. Use it as
/// ShardingSetup::transform of a strategy that knows the mesh. All ranks of the axis get the same
/// micro-batches and return the same results.
class TensorParallel {
 public:
  /// The communicator outlives the transformed models.
  explicit TensorParallel(Communicator& tensor, const TensorParallelOptions& options = {})
      : tensor_(&tensor), options_(options) {}

  /// The model for this axis. Throws Error(kInvalidArgument) when the ranks cannot divide it
  /// (tensor_parallel_problem). Its blocks throw it for a parameter that is neither sliced nor
  /// marked as replicated.
  ModelSpec operator()(ModelSpec model) const;

 private:
  Communicator* tensor_;
  TensorParallelOptions options_;
};

}  // namespace tessera
