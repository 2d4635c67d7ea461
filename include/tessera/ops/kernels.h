// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Forward and backward of each operation without autograd, for hand-written blocks. Every function
/// runs the CUDA version where there is one for the tensors' device, dtype and shape, and the ATen
/// version otherwise. "Accumulated" outputs are added to. Tensors are contiguous; "rows" is the
/// product of all dimensions but the last.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera::ops {

/// Column sums on their way into gradients of biases and norm weights: a block collects them and
/// adds them all in one launch, in a fixed order.
struct ColumnSums {
  /// One gradient and what is added to it.
  struct Item {
    at::Tensor partial;   ///< [parts, n], rows may be strided
    at::Tensor gradient;  ///< [n], receives gradient += sum over parts
  };
  std::vector<Item> items;  ///< in the order they were collected in
};
void add_column_sums(ColumnSums& sums);  ///< and empties it

/// A weight is [out, in]; it, or its gradient, may be the transposed view of one stored [in, out].
/// x W^T + bias + residual; bias [out] and residual [..., out] may be undefined. result, where
/// defined, [as many rows or more, out], receives it in its first rows and is what is returned.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual = {}, const at::Tensor& result = {});
/// gradient [..., out] -> [..., in]
at::Tensor linear_backward_input(const at::Tensor& gradient, const at::Tensor& weight);
/// The same into result.
void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result);
/// weight_gradient [out, in] += gradient^T x; without `add`, and where it was blank
/// (tessera/core/blank.h), = gradient^T x.
void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add = true);
/// bias_gradient [n] += column sums of gradient, through sums.
void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums);

/// gelu_tanh(x W^T + bias); pre_activation receives x W^T + bias unless null.
at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation);
/// Returns 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) in x's shape and dtype.
at::Tensor gelu_tanh_forward(const at::Tensor& x);
/// The gradient of x, in its shape.
at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x);
/// The same in one pass with what a feed-forward block needs around it: gradient is overwritten
/// with the gradient of pre_activation, whose column sums go to bias_gradient (unless undefined).
/// output, unless null, receives gelu_tanh(pre_activation).
void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output);

/// silu(gate) * up of gate_up [..., 2 n], which holds gate and then up -> [..., n].
at::Tensor swiglu_forward(const at::Tensor& gate_up);
/// -> the gradient of gate_up. output, unless null, receives swiglu_forward(gate_up), in the memory
/// of gradient [..., n].
at::Tensor swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                            at::Tensor* output);

/// What a layer norm gives, and what its backward needs.
struct LayerNormOutput {
  at::Tensor output, mean, rstd;  ///< mean and rstd [rows], fp32 (fp64 for fp64)
};
/// cleared, where defined, is other memory that is set to zeros in the same pass.
LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared = {});
/// Where a norm's backward adds its gradients.
struct LayerNormGradients {
  at::Tensor weight, bias;        ///< accumulated through sums; undefined: not wanted
  at::Tensor column_sum;          ///< [n], accumulated with the column sums of the result (the bias
                                  ///< gradient of the layer before); undefined: not wanted
  at::Tensor* columns = nullptr;  ///< receives the same before it is summed up: [parts, n], in fp32
                                  ///< (fp64 for fp64), rows may be strided
  at::Tensor cleared;             ///< as in layer_norm_forward
};

/// What an RMS norm gives, and what its backward needs.
struct RmsNormOutput {
  at::Tensor output, rstd;  ///< rstd as a layer norm's
};
/// As rms_norm in functional.h.
RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared = {});
/// What forward had; an RMS norm has no mean and no bias.
struct NormInput {
  at::Tensor x, mean, rstd, weight, bias;  ///< weight and bias [n]; see LayerNormOutput
};
/// Gradient of x, plus residual_gradient where defined. output, unless null, receives the norm's
/// output anew. An RMS norm leaves gradients.bias alone.
at::Tensor norm_backward(const at::Tensor& gradient, const NormInput& input,
                         const at::Tensor& residual_gradient, const LayerNormGradients& gradients,
                         ColumnSums& sums, at::Tensor* output = nullptr);

/// An element is 0 with this probability, else divided by the complement. Element i of a whole
/// tensor takes number i that Philox 4x32-10 (Salmon et al. 2011) gives for the seed, on every
/// device alike; the tensor at hand begins at element `first` of it.
struct Dropout {
  double probability = 0;   ///< in [0, 1); 0: off
  uint64_t seed = 0;        ///< seed of the numbers
  int64_t first = 0;        ///< place of the first element in the whole tensor
  at::Tensor seed_at = {};  ///< int64, its first number is the seed: where it lies when kernels run
  bool on() const { return probability > 0; }  ///< whether it does anything
};
/// residual + dropped x, in fp32 and rounded once; residual undefined: 0. Contiguous, of one shape.
at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, const Dropout& dropout);
/// Its gradient of x, whose column sums go to bias_gradient (unless undefined).
at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout,
                            const at::Tensor& bias_gradient, ColumnSums& sums);

/// In place on x [batch, sequence, heads, d], whose tokens may be apart, as rotary in attention.h:
/// turns by the tables' rows [n, d/2] that positions [batch, sequence] (int64) names, or by the
/// first `sequence` of them where that is undefined. back: the other way round, as gradients go.
void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back);

/// Of attention's probabilities. The portable version draws by the head's number in the model, a
/// kernel by first_head and the shape.
struct AttentionDropout {
  double probability = 0;  ///< in [0, 1); 0: off
  uint64_t seed = 0;       ///< seed of the numbers
  int64_t first_head = 0;  ///< number of the first head at hand
  /// int64 [2] on a GPU: where what a kernel draws from lies when it runs, and a 0
  at::Tensor seed_at = {};
  bool on() const { return probability > 0; }  ///< whether it does anything
};

/// Causal attention of tokens to those before them, out of one tensor qkv [batch, sequence, (heads
/// + 2 key_heads) d].
struct SelfAttention {
  int64_t heads = 0, key_heads = 0;  ///< query head i reads key head i / (heads / key_heads)
  /// Columns of qkv are [heads, 3, d], as BLOOM stores them; else all queries, all keys, all
  /// values.
  bool by_head = false;
  double scale = 1.0;             ///< multiplies the scores
  at::Tensor slopes;              ///< ALiBi: fp32 [heads] on qkv's device; undefined: none
  AttentionDropout dropout = {};  ///< of the probabilities
  int64_t window = 0;             ///< a query sees so many keys at most, up to its own; 0: all
};
/// The parts of qkv.
struct QueriesKeysValues {
  at::Tensor q, k, v;  ///< [batch, sequence, heads or key_heads, d]
};
SelfAttention alibi(const at::Tensor& slopes, int64_t head_dim);                       ///< BLOOM's
QueriesKeysValues split_heads(const at::Tensor& qkv, const SelfAttention& attention);  ///< views

/// What attention gives, and what its backward needs.
struct AttentionOutput {
  at::Tensor output, log_sum_exp;  ///< [batch, sequence, heads * d]; fp32 [batch, heads, sequence],
                                   ///< private to the version that wrote it
  at::Tensor random_state = {};    ///< what dropout drew from, as private
};
/// score(i, j) = scale q_i . k_j + slope (j - i), j <= i; mask and packed as in functional.h.
/// Packed tokens may be [sequences, packed.sequence] with rows of zeros behind the last one.
AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed = {});
/// -> the gradient of qkv, in its layout.
at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed = {});

/// Root-mean-square norms of every query and every key head (Qwen3), each over its d numbers.
struct HeadNorms {
  at::Tensor query, key;  ///< [d]: one weight for all heads
  double epsilon = 1e-6;  ///< added to the mean of squares
};
/// What head_norm_() leaves for its backward.
struct HeadNormInput {
  at::Tensor x, rstd;  ///< [batch, sequence, heads + key_heads, d] as it was; rstd fp32 (fp64 for
                       ///< fp64) [batch, sequence, heads + key_heads, 1]
};
/// In place on qkv, all queries and then all keys first. -> what backward needs.
HeadNormInput head_norm_(const at::Tensor& qkv, const SelfAttention& attention,
                         const HeadNorms& norms);
/// In place: gradient, of qkv, becomes that of what the norms were given. query, key: accumulated
/// through sums; undefined: not wanted.
void head_norm_backward_(const at::Tensor& gradient, const SelfAttention& attention,
                         const HeadNorms& norms, const HeadNormInput& input,
                         const at::Tensor& query, const at::Tensor& key, ColumnSums& sums);

/// Whether attention in heads of d computes packed tokens, of which x [..., n] are some, by whole
/// sequences: where the last one is shorter it copies what has no spare rows behind it.
bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed);

/// One more token of every row: its key and value become number lengths[row] of those kept, and its
/// query attends to all up to it.
///   q             [batch, 1, heads, d]
///   k, v          [batch, 1, key_heads, d], as in causal_attention of attention.h
///   keys, values  [batch, capacity, key_heads, d], written to; what lies behind a row is not read
///   lengths       int64 [batch], each less than capacity
///   slopes        ALiBi: fp32 [heads], added as slope * (key's place - query's place); undefined:
///                 none
///   window        as in SelfAttention
/// -> [batch, 1, heads * d]
at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& lengths, double scale, const at::Tensor& slopes,
                              int64_t window = 0);
/// The beginnings of rows: their keys and values become the first of those kept.
///   k, v          [1, tokens, key_heads, d], rows end to end as packed.offsets has them
///   keys, values  [batch, capacity, key_heads, d], written to: row by row, and none behind the
///                 first `batch` rows; none has more than `capacity` tokens
void keep_in_cache(const at::Tensor& k, const at::Tensor& v, const at::Tensor& keys,
                   const at::Tensor& values, const PackedRows& packed);

/// Rows of weight_gradient [vocabulary, n] += rows of gradient [..., n] with the same id; every
/// id's sum is formed in fp32 and added once.
void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                        const at::Tensor& weight_gradient);

/// In place: logits [rows, vocabulary] -> (softmax - onehot) * scale (an fp32 device scalar), 0 in
/// rows labelled -100; row_loss [rows] fp32 receives -log softmax[label] or 0. A label outside the
/// vocabulary gives NaN. Rows of logits may be strided. scale undefined: losses only, logits are
/// left as they are. Logits for it: x weight^T with rows padded so that kernels can use wide
/// accesses; [rows, vocabulary].
at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight);
/// Turns logits into gradients as said above; labels are int64 [rows].
void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss);
/// cross_entropy_ in two halves, for logits that are some columns of wider ones. A label of at
/// least the number of these columns marks a target elsewhere, one below 0 but -100 a target that
/// is in no part. statistics [2, rows] fp32 receives the rows' log-sum-exp and the logit of the
/// label: 0 when elsewhere, NaN when nowhere.
void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics);
/// In place, with the statistics [parts, 2, rows] of all columns; else as cross_entropy_.
void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss);

}  // namespace tessera::ops
