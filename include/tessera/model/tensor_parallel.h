// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tensor-parallel layers (Shoeybi et al. 2019) and the functions they consist of. With one rank
/// they are ordinary layers.
///
/// "Whole" tensors are equal on all ranks of the axis. Under sequence parallelism (Korthikanti et
/// al. 2022) norms, residuals and dropout between the layers hold only the rank's own tokens:
/// [rows_per_rank, n] instead of [batch, sequence, n]. The tokens of all rows in order are divided
/// equally; padding of the last part gets no gradient.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/block.h"
#include "tessera/model/model_spec.h"

namespace tessera {

class Communicator;

/// The ranks of a tensor axis. Copied freely; the communicator outlives it.
class TensorAxis {
 public:
  TensorAxis() = default;                            ///< one rank
  explicit TensorAxis(const BuildContext& context);  ///< the axis of the context, or one rank

  int rank() const { return rank_; }  ///< this rank's coordinate, from 0
  int size() const { return size_; }  ///< the number of ranks
  /// Whether activations between layers are sharded by tokens.
  bool sequence_parallel() const { return sequence_parallel_; }
  Communicator& comm() const { return *comm_; }  ///< only when size() > 1
  /// Tokens per rank under sequence parallelism, padding included.
  int64_t rows_per_rank(int64_t rows) const { return (rows + size_ - 1) / size_; }

 private:
  Communicator* comm_ = nullptr;
  int rank_ = 0, size_ = 1;
  bool sequence_parallel_ = false;
};

/// Slicing of a whole parameter over the axis; see TensorShard.
struct TensorCut {
  int dim = -1;   ///< sliced dimension; -1: replicated
  int parts = 1;  ///< equal parts of the dimension, each of which is sliced
  /// zeros pad a size that does not divide (vocabularies); otherwise it is an error.
  bool padded = false;
  /// Replicated and applied to all tokens on every rank. Other replicated parameters act between
  /// the layers: under sequence parallelism each rank's gradient covers its own tokens, and the
  /// strategy sums them.
  bool on_all_tokens = false;
  /// Replicated and applied to the rank's own heads or columns: each rank's gradient is partial,
  /// and the strategy sums them.
  bool partial_gradient = false;
};

/// The rank's slice of `whole`: a new leaf that requires a gradient. Throws Error(kInvalidArgument)
/// with the name if the dimension does not divide, or if a rank's slice would be all padding.
Parameter cut_parameter(const std::string& name, const at::Tensor& whole, bool weight_decay,
                        const TensorCut& cut, const TensorAxis& axis);
/// A builder of the block for the ranks of axis. Building throws Error(kInvalidArgument) for a
/// parameter that is neither sliced nor marked as replicated: norms would count it twice.
BlockBuilder shared_by(Communicator& axis, BlockBuilder builder, bool sequence_parallel = false);
/// Gathers a value that is sliced over placement.cut (collective); returns an unsliced value
/// itself.
at::Tensor gather_whole(const at::Tensor& value, const Placement& placement);
/// The shape of the rank's slice.
std::vector<int64_t> cut_shape(const std::string& name, at::IntArrayRef whole, const TensorCut& cut,
                               const TensorAxis& axis);
/// Placement of a parameter of this whole shape, sliced like this.
Placement place(at::IntArrayRef whole, const TensorCut& cut, const TensorAxis& axis);
/// Copies the rank's slice of a whole value into part; padding of part is unchanged.
void copy_part(const at::Tensor& whole, const TensorShard& shard, int rank, const at::Tensor& part);
/// The inverse: concatenates the slices of all ranks, in order.
at::Tensor join_parts(const std::vector<at::Tensor>& parts, const TensorShard& shard);

/// Reason why this many ranks cannot share the model; empty if they can.
std::string tensor_parallel_problem(const ModelSpec& model, int degree);

/// --- Autograd functions, described as "forward / backward". Every rank calls the same ones in the
/// same order. Identity / all-reduce.
at::Tensor copy_to_tensor_ranks(const at::Tensor& x, const TensorAxis& axis);
/// All-reduce / identity.
at::Tensor reduce_from_tensor_ranks(const at::Tensor& x, const TensorAxis& axis);
/// All-gather of own tokens [rows_per_rank, n] to all [tokens..., n] / reduce-scatter: for layers
/// with partial gradients on every rank. tokens: e.g. micro_batch.input_ids.sizes().
at::Tensor gather_tokens(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis);
/// All-gather like gather_tokens() / own rows of the gradient: for layers that every rank computes
/// in full.
at::Tensor gather_whole_tokens(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis);
/// Reduce-scatter of [tokens..., n] to own tokens [rows_per_rank, n] / all-gather.
at::Tensor reduce_scatter_tokens(const at::Tensor& x, const TensorAxis& axis);
/// Own tokens of a whole [tokens..., n] / all-gather.
at::Tensor own_tokens(const at::Tensor& x, const TensorAxis& axis);
/// All-gather of columns [..., n] -> [..., columns], padding removed / own columns.
at::Tensor gather_columns(const at::Tensor& x, int64_t columns, const TensorAxis& axis);

/// Input of a column-parallel layer: copy_to_tensor_ranks(), or gather_tokens() under sequence
/// parallelism.
at::Tensor enter_tensor_ranks(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis);
/// Output of a row-parallel layer: reduce_from_tensor_ranks(), or reduce_scatter_tokens().
at::Tensor leave_tensor_ranks(const at::Tensor& x, const TensorAxis& axis);

/// --- Layers as functions of the rank's parameters. Weight gradients are added to weight.grad() if
/// defined (the Block contract), and returned to autograd otherwise. Column-parallel: x between
/// layers -> [tokens..., out / size]; weight [out / size, in], bias [out / size] or undefined. The
/// input gradient's all-reduce overlaps the weight gradient.
at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, at::IntArrayRef tokens,
                                  const TensorAxis& axis);
/// Row-parallel: x [tokens..., in / size] -> between layers; weight [out, in / size]; bias [out] or
/// undefined, replicated and added once.
at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const TensorAxis& axis);
/// Vocab-parallel: ids [tokens...] int64 in [0, vocabulary) -> between layers; weight: the rank's
/// rows of the padded table. deferred_rows: see ops::embedding().
at::Tensor vocab_parallel_embedding(
    const at::Tensor& ids, const at::Tensor& weight, int64_t vocabulary, const TensorAxis& axis,
    const std::shared_ptr<DeferredEmbeddingRows>& deferred_rows = nullptr);
/// Targets of a vocab-parallel loss.
struct LossTargets {
  at::Tensor labels;          ///< int64 [tokens...]; -100: not counted
  at::Tensor positions = {};  ///< MicroBatch::head_positions, the only ones with logits
  at::Tensor weights = {};    ///< fp32, one a target (target_weights()), multiply the losses
  int64_t chunk_rows = 1024;  ///< rows whose logits exist at a time
};
/// Vocab-parallel ops::linear_cross_entropy() of x (between layers); the same scalar on every rank.
/// Logits are never gathered: per chunk the ranks exchange two numbers a row, log-sum-exp and
/// target logit.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                        const LossTargets& targets, const at::Tensor& loss_gradient,
                                        int64_t vocabulary, const TensorAxis& axis);

/// --- Layers that own their parameters, for custom models. Made from whole weights, equal on every
/// rank (drawn from block_seed(context.seed, block) or read), on context.device. Parameters are
/// called name.weight and name.bias.
class CutLayer {
 public:
  /// Handles for Block::parameters().
  const std::vector<Parameter>& parameters() const { return parameters_; }

 protected:
  explicit CutLayer(const BuildContext& context)
      : axis_(context) {}  ///< for a layer on the context's axis

  TensorAxis axis_;                    ///< the ranks that share the layer
  std::vector<Parameter> parameters_;  ///< set by the derived constructor
};

/// A column-parallel linear layer: outputs are sliced.
class ColumnParallelLinear : public CutLayer {
 public:
  /// weight [out, in]; bias [out] or undefined. parts: see TensorCut.
  ColumnParallelLinear(const BuildContext& context, const std::string& name,
                       const at::Tensor& weight, const at::Tensor& bias = {}, int parts = 1);
  /// x between layers -> [tokens..., out / size]; see column_parallel_linear().
  at::Tensor forward(const at::Tensor& x, at::IntArrayRef tokens = {}) const;
};

/// A row-parallel linear layer: inputs are sliced.
class RowParallelLinear : public CutLayer {
 public:
  /// weight [out, in]; bias [out] or undefined.
  RowParallelLinear(const BuildContext& context, const std::string& name, const at::Tensor& weight,
                    const at::Tensor& bias = {});
  at::Tensor forward(const at::Tensor& x) const;  ///< x [tokens..., in / size] -> between layers
};

/// A vocab-parallel embedding: rows of the table are sliced.
class VocabParallelEmbedding : public CutLayer {
 public:
  /// weight [vocabulary, n]
  VocabParallelEmbedding(const BuildContext& context, const std::string& name,
                         const at::Tensor& weight);
  at::Tensor forward(const at::Tensor& ids) const;  ///< ids [tokens...] int64 -> between layers

 private:
  int64_t vocabulary_;
};

}  // namespace tessera
