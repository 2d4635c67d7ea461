// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tensor parallelism (Shoeybi et al. 2019) under any strategy.
#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// How the ranks of a tensor axis share a model.
struct TensorParallelOptions {
  bool sequence_parallel = false;  ///< norms and residuals on the rank's own tokens only
};

/// Tells the blocks of a model to build themselves for the tensor axis (BuildContext::tensor): they
/// sum activations inside forward and backward, and say where each parameter lies. A strategy that
/// knows the mesh does the rest (ShardingSetup::transform). All ranks of the axis get the same
/// micro-batches and return the same results.
class TensorParallel {
 public:
  /// The communicator outlives the models that are made.
  explicit TensorParallel(Communicator& tensor, const TensorParallelOptions& options = {})
      : tensor_(&tensor), options_(options) {}

  /// Throws Error(kInvalidArgument) when the ranks cannot share the model
  /// (tensor_parallel_problem). Its blocks throw it when they build a parameter that is neither cut
  /// nor marked as held by all ranks.
  ModelSpec operator()(ModelSpec model) const;

 private:
  Communicator* tensor_;
  TensorParallelOptions options_;
};

}  // namespace tessera
