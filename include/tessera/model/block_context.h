// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How a strategy runs a block on a micro-batch: whether it trains, what it draws from, and where
/// its backward pass leaves things.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "tessera/ops/fp8.h"

namespace tessera {

namespace ops {
class Fp8Weights;
}
class Communicator;
struct CutRows;
class DeferredGradients;
class GradientColumns;
class DeferredEmbeddingRows;
class KeptTensors;

/// One pass of a micro-batch through blocks. Strategies make it; blocks read it beside the
/// MicroBatch, which is the user's data. As it stands it is an evaluation on a single rank.
struct BlockContext {
  /// d(objective)/d(loss sum): a scalar fp32 tensor, set in steps before the last block runs. A
  /// loss that computes its gradient during forward reads it here; for all others it is the seed of
  /// backward.
  at::Tensor loss_gradient = {};
  /// Differs for every step, micro-batch and data rank, and is the same on all ranks that work on
  /// one micro-batch. A block draws its random numbers from this and its own index.
  uint64_t seed = 0;
  /// True in steps and false in evaluations: dropout is on, also where a forward pass runs without
  /// gradients.
  bool training = false;
  /// Backward repeats this forward pass (recomputation): what forward() advances, such as running
  /// statistics, must be left as it was.
  bool will_recompute = false;
  /// This is that repetition: the values of its output are not read.
  bool recomputes = false;
  /// Tensors that a forward pass with will_recompute hands to its repetition, such as attention's
  /// output. Null: the repetition computes everything.
  std::shared_ptr<KeptTensors> kept_tensors = nullptr;
  /// A forward pass with gradients saves outputs of norms and activation functions, which backward
  /// would otherwise recompute.
  bool save_norm_outputs = false;
  /// A forward pass with gradients saves no activations of experts: backward forms them again.
  bool recompute_experts = false;
  /// Column sums that the backward pass of one block hands to that of the block before it, with the
  /// gradient. Null: none are handed on.
  std::shared_ptr<GradientColumns> gradient_columns = nullptr;
  /// Where backward leaves its work on gradients of parameters
  /// (tessera/core/deferred_gradients.h); set for blocks that Block::defers_gradients(). Null:
  /// backward does that work itself.
  std::shared_ptr<DeferredGradients> deferred_gradients = nullptr;
  /// Where backward hands rows of a table's gradient that is on its way to other ranks already, for
  /// parameters with Parameter::row_gradient. Null: backward adds the rows itself.
  std::shared_ptr<DeferredEmbeddingRows> deferred_rows = nullptr;
  /// The ranks whose micro-batches make up the batch, for all_gather()
  /// (tessera/model/all_gather.h). Null: this rank alone.
  Communicator* data_axis = nullptr;
  /// Where the MicroBatch holds only this rank's part of its rows (tessera/model/cut_rows.h); set
  /// for blocks that Block::takes_cut_rows(). Null: whole rows.
  std::shared_ptr<const CutRows> cut_rows = nullptr;
  /// On an expert axis: the tokens of this micro-batch, or those of another rank of the axis if it
  /// has more. 0: this rank's own.
  int64_t expert_tokens = 0;
  /// Scales of products in 8 bits, in training passes through blocks that Block::takes_fp8().
  Fp8 fp8 = Fp8::kOff;
  Fp8Layers fp8_layers = {};  ///< the layers with such products
  /// 8-bit copies of weights that serve all micro-batches of a step. Null: each use makes its own.
  std::shared_ptr<ops::Fp8Weights> fp8_weights = nullptr;
  /// Layers of language models take their hand-scheduled version wherever it is right, also where
  /// it has no kernels: for tests on CPUs.
  bool fused_layers = false;
};

}  // namespace tessera
