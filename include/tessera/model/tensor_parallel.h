// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Layers whose weights the ranks of a tensor axis share (Shoeybi et al. 2019), and the functions
/// they are made of. On an axis of one rank every one of them is the ordinary layer.
///
/// "Whole" tensors are equal on all ranks of the axis. Under sequence parallelism (Korthikanti et
/// al. 2022) what lies between the layers - norms, residuals, dropout - holds the rank's own tokens
/// only: [rows_per_rank, n] instead of [batch, sequence, n], where the tokens of all rows in order
/// are cut into equal parts and the last part is filled up; the filling gets no gradient.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/block.h"
#include "tessera/model/model_spec.h"

namespace tessera {

class Communicator;

/// The ranks that share every layer of a model; copied freely, the communicator outlives it.
class TensorAxis {
 public:
  TensorAxis() = default;                            ///< one rank
  explicit TensorAxis(const BuildContext& context);  ///< the axis of the context, or one rank

  int rank() const { return rank_; }  ///< this rank's place, from 0
  int size() const { return size_; }  ///< the number of ranks
  /// Whether activations between layers are cut by tokens.
  bool sequence_parallel() const { return sequence_parallel_; }
  Communicator& comm() const { return *comm_; }  ///< only when size() > 1
  /// Tokens of one rank under sequence parallelism, filling included.
  int64_t rows_per_rank(int64_t rows) const { return (rows + size_ - 1) / size_; }

 private:
  Communicator* comm_ = nullptr;
  int rank_ = 0, size_ = 1;
  bool sequence_parallel_ = false;
};

/// How a whole parameter is cut over the axis; see TensorShard.
struct TensorCut {
  int dim = -1;         ///< -1: every rank holds all of it
  int parts = 1;        ///< equal parts of the dimension, cut alike
  bool padded = false;  ///< zeros fill up a size that does not divide (vocabularies); else it is
                        ///< refused
  /// Not cut, and used on all tokens alike on every rank. Else what is not cut is used between the
  /// layers, so that under sequence parallelism each rank's gradient is of its own tokens, and the
  /// strategy sums them.
  bool on_all_tokens = false;
  /// Not cut, and used on the rank's own heads or columns: each rank's gradient is a part of the
  /// sum.
  bool gradient_in_parts = false;
};

/// The rank's part of whole, a new leaf that requires a gradient. Throws Error(kInvalidArgument)
/// with the name when the dimension does not divide, or when a rank's part would be all padding.
Parameter cut_parameter(const std::string& name, const at::Tensor& whole, bool weight_decay,
                        const TensorCut& cut, const TensorAxis& axis);
/// The builder of a block that the ranks of axis share. Building throws Error(kInvalidArgument)
/// when the block makes a parameter that is neither cut nor marked as held by all of them: norms
/// would count it twice.
BlockBuilder shared_by(Communicator& axis, BlockBuilder builder, bool sequence_parallel = false);
/// The whole of a value of which every rank of placement.cut has its slice (collective), or the
/// value itself when it is not cut.
at::Tensor gather_whole(const at::Tensor& value, const Placement& placement);
/// The shape of the rank's part.
std::vector<int64_t> cut_shape(const std::string& name, at::IntArrayRef whole, const TensorCut& cut,
                               const TensorAxis& axis);
/// Where a parameter lies that is cut so, given its whole shape.
Placement place(at::IntArrayRef whole, const TensorCut& cut, const TensorAxis& axis);
/// The rank's part of a whole value, into part; what pads a part stays as it is.
void copy_part(const at::Tensor& whole, const TensorShard& shard, int rank, const at::Tensor& part);
/// The inverse: the parts of all ranks, in order, as the whole tensor.
at::Tensor join_parts(const std::vector<at::Tensor>& parts, const TensorShard& shard);

/// Why the model cannot be shared by this many ranks; empty when it can.
std::string tensor_parallel_problem(const ModelSpec& model, int degree);

/// --- Autograd functions; "forward / backward". Every rank calls the same ones in the same order.
/// Identity / sum over ranks.
at::Tensor copy_to_tensor_ranks(const at::Tensor& x, const TensorAxis& axis);
/// Sum over ranks / identity.
at::Tensor reduce_from_tensor_ranks(const at::Tensor& x, const TensorAxis& axis);
/// Own tokens [rows_per_rank, n] to those of all ranks [tokens..., n] / reduce-scatter: for layers
/// in which every rank computes a part of the gradient. tokens: e.g. micro_batch.input_ids.sizes().
at::Tensor gather_tokens(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis);
/// The same / own rows of the gradient: for layers that every rank computes in full.
at::Tensor gather_whole_tokens(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis);
/// [tokens..., n] summed over ranks and cut into own tokens [rows_per_rank, n] / all-gather.
at::Tensor reduce_scatter_tokens(const at::Tensor& x, const TensorAxis& axis);
/// Own tokens of a whole [tokens..., n] / all-gather.
at::Tensor own_tokens(const at::Tensor& x, const TensorAxis& axis);
/// [..., n] with the columns of every rank -> [..., columns], padding removed / own columns.
at::Tensor gather_columns(const at::Tensor& x, int64_t columns, const TensorAxis& axis);

/// Into a layer that is cut by columns: copy_to_tensor_ranks, or gather_tokens under sequence
/// parallelism.
at::Tensor enter_tensor_ranks(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis);
/// Out of a layer that is cut by rows: reduce_from_tensor_ranks, or reduce_scatter_tokens.
at::Tensor leave_tensor_ranks(const at::Tensor& x, const TensorAxis& axis);

/// --- Layers as functions of the rank's parameters. Weight gradients are added to weight.grad()
/// directly where that is defined (the Block contract) and handed to autograd otherwise.
/// x between layers -> [tokens..., out / size]; weight [out / size, in], bias [out / size] or
/// undefined. The sum of the input's gradient overlaps the weight's.
at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, at::IntArrayRef tokens,
                                  const TensorAxis& axis);
/// x [tokens..., in / size] -> between layers; weight [out, in / size], bias [out] or undefined,
/// held by every rank and added once.
at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const TensorAxis& axis);
/// ids [tokens...] int64 in [0, vocabulary) -> between layers; weight: the rank's rows of the
/// padded table. late_rows: see ops::embedding().
at::Tensor vocab_parallel_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                    int64_t vocabulary, const TensorAxis& axis,
                                    const std::shared_ptr<LateRows>& late_rows = nullptr);
/// ops::linear_cross_entropy of x (between layers) with a table cut by rows, labels [tokens...];
/// the same scalar on every rank. Logits are never gathered: per chunk of rows the ranks exchange
/// two numbers a row, their log-sum-exp and the target's logit. positions:
/// MicroBatch::head_positions; logits are formed there alone.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                        const at::Tensor& labels, const at::Tensor& loss_gradient,
                                        int64_t vocabulary, const TensorAxis& axis,
                                        const at::Tensor& positions = {},
                                        int64_t chunk_rows = 1024);

/// --- The same as layers that own their parameters, for models of one's own. They are made from
/// whole weights, equal on every rank (drawn from block_seed(context.seed, block) or read), on
/// context.device. Parameters are called name.weight and name.bias.
class CutLayer {
 public:
  /// Handles for Block::parameters().
  const std::vector<Parameter>& parameters() const { return parameters_; }

 protected:
  explicit CutLayer(const BuildContext& context)
      : axis_(context) {}  ///< for a layer on the context's axis

  TensorAxis axis_;                    ///< the ranks that share it
  std::vector<Parameter> parameters_;  ///< made by the constructor of the layer
};

/// A linear layer whose outputs are cut.
class ColumnParallelLinear : public CutLayer {
 public:
  /// weight [out, in]; bias [out] or undefined. parts: see TensorCut.
  ColumnParallelLinear(const BuildContext& context, const std::string& name,
                       const at::Tensor& weight, const at::Tensor& bias = {}, int parts = 1);
  /// Takes x as it is between layers, returns [tokens..., out / size]; see
  /// column_parallel_linear().
  at::Tensor forward(const at::Tensor& x, at::IntArrayRef tokens = {}) const;
};

/// A linear layer whose inputs are cut.
class RowParallelLinear : public CutLayer {
 public:
  /// Takes a weight [out, in] and a bias [out] or undefined.
  RowParallelLinear(const BuildContext& context, const std::string& name, const at::Tensor& weight,
                    const at::Tensor& bias = {});
  at::Tensor forward(const at::Tensor& x) const;  ///< x [tokens..., in / size] -> between layers
};

/// A table whose rows are cut.
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
