// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kernels: forward and backward of each operation without autograd, for hand-written blocks. Each
/// runs a CUDA version if one exists for device, dtype and shape, otherwise the ATen version.
/// "Accumulated" outputs are added to. Tensors are contiguous; "rows" is the product of all
/// dimensions but the last.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera::ops {

/// Pending column sums for gradients of biases and norm weights: a block collects them and adds all
/// in one launch, in a fixed order.
struct ColumnSums {
  /// One gradient and its pending parts.
  struct Item {
    at::Tensor partial;   ///< [parts, n], rows may be strided
    at::Tensor gradient;  ///< [n], receives gradient += sum over parts
  };
  std::vector<Item> items;  ///< in order of collection
};
void add_column_sums(ColumnSums& sums);  ///< adds all items to their gradients and empties sums

/// x W^T + bias + residual; bias [out] and residual [..., out] may be undefined. weight is [out,
/// in]; it, or its gradient, may be the transposed view of one stored [in, out]. result, if
/// defined, [as many rows or more, out], receives the rows and is returned.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual = {}, const at::Tensor& result = {});
/// Gradient of a linear layer's input: gradient [..., out] -> [..., in].
at::Tensor linear_backward_input(const at::Tensor& gradient, const at::Tensor& weight);
/// linear_backward_input() into result.
void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result);
/// weight_gradient [out, in] += gradient^T x; without `add`, and where it was lazily zero
/// (tessera/core/lazy_zero.h), = gradient^T x.
void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add = true);
/// bias_gradient [n] += column sums of gradient, through sums.
void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums);

/// gelu_tanh(x W^T + bias); pre_activation receives x W^T + bias unless null.
at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation);
/// Returns 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) in x's shape and dtype. largest, here
/// and below: unless null, receives the result's largest magnitude, fp32 [1, 1]; NaN if there is
/// one.
at::Tensor gelu_tanh_forward(const at::Tensor& x, at::Tensor* largest = nullptr);
/// Gradient of gelu_tanh() with respect to x, in its shape.
at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x);
/// Fused backward of bias and GELU: overwrites gradient with that of pre_activation and adds its
/// column sums to bias_gradient (unless undefined). output, unless null, receives
/// gelu_tanh(pre_activation).
void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output,
                         at::Tensor* largest = nullptr);

/// silu(gate) * up, with gate_up [..., 2 n] = gate, then up -> [..., n].
at::Tensor swiglu_forward(const at::Tensor& gate_up, at::Tensor* largest = nullptr);
/// Returns the gradient of gate_up. output, unless null, receives swiglu_forward(gate_up), in
/// gradient's memory [..., n].
at::Tensor swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                            at::Tensor* output, at::Tensor* largest = nullptr);

/// Output of a layer norm, with statistics for backward.
struct LayerNormOutput {
  at::Tensor output, mean, rstd;  ///< mean and rstd [rows], fp32 (fp64 for fp64)
};
/// LayerNorm of x [..., n]. cleared, if defined: other memory that the same pass zeroes.
LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared = {}, at::Tensor* largest = nullptr);
/// Destinations of a norm's parameter gradients.
struct LayerNormGradients {
  at::Tensor weight, bias;  ///< accumulated through sums; undefined: not wanted
  /// [n], accumulated with the column sums of the result (the previous layer's bias gradient);
  /// undefined: not wanted.
  at::Tensor column_sum;
  /// Receives column_sum's parts: [parts, n], fp32 (fp64 for fp64), rows may be strided.
  at::Tensor* columns = nullptr;
  at::Tensor cleared;             ///< see layer_norm_forward()
  at::Tensor* largest = nullptr;  ///< of the result, see gelu_tanh_forward()
};

/// Output of an RMS norm, with statistics for backward.
struct RmsNormOutput {
  at::Tensor output, rstd;  ///< rstd like a layer norm's
};
/// RMSNorm as rms_norm() in functional.h; cleared: see layer_norm_forward().
RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared = {}, at::Tensor* largest = nullptr);
/// Saved inputs of a norm's forward; an RMS norm has no mean and no bias.
struct NormInput {
  at::Tensor x, mean, rstd, weight, bias;  ///< weight and bias [n]; see LayerNormOutput
};
/// Gradient of x, plus residual_gradient if defined. output, unless null, receives the recomputed
/// output. An RMS norm ignores gradients.bias.
at::Tensor norm_backward(const at::Tensor& gradient, const NormInput& input,
                         const at::Tensor& residual_gradient, const LayerNormGradients& gradients,
                         ColumnSums& sums, at::Tensor* output = nullptr);

/// Dropout: an element is 0 with this probability, else divided by the complement. Element i of the
/// whole tensor uses number i of Philox 4x32-10 (Salmon et al. 2011) for the seed, on every device.
/// The given tensor starts at element `first` of the whole.
struct Dropout {
  double probability = 0;   ///< in [0, 1); 0: off
  uint64_t seed = 0;        ///< seed of the numbers
  int64_t first = 0;        ///< index of the first element in the whole tensor
  at::Tensor seed_at = {};  ///< int64 device memory of the seed, read when kernels run
  bool on() const { return probability > 0; }  ///< whether it has an effect
};
/// residual + dropout(x), in fp32 and rounded once; residual undefined: 0. Contiguous, of one
/// shape.
at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, const Dropout& dropout);
/// Gradient of dropout_add() with respect to x; its column sums go to bias_gradient (unless
/// undefined).
at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout,
                            const at::Tensor& bias_gradient, ColumnSums& sums);

/// rotary() of attention.h in place on x [batch, sequence, heads, d], with any strides between
/// tokens and between heads. Uses the rows of the tables [n, d/2] that positions [batch, sequence]
/// (int64) gives; undefined: the first `sequence` rows. back: inverse rotation, for gradients.
void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back);

/// Dropout of attention probabilities. The portable version draws by the head's index in the model,
/// a kernel by first_head and the shape.
struct AttentionDropout {
  double probability = 0;  ///< in [0, 1); 0: off
  uint64_t seed = 0;       ///< seed of the numbers
  int64_t first_head = 0;  ///< index in the model of the first head given
  /// int64 [2] on a GPU: the seed, read when a kernel runs, and a 0.
  at::Tensor seed_at = {};
  bool on() const { return probability > 0; }  ///< whether it has an effect
};

/// Causal self-attention over one tensor qkv [batch, sequence, (heads + 2 key_heads) d].
struct SelfAttention {
  int64_t heads = 0, key_heads = 0;  ///< query head i reads key head i / (heads / key_heads)
  /// Interleaved qkv: columns are [heads, 3, d], as in BLOOM; else all queries, all keys, all
  /// values.
  bool by_head = false;
  double scale = 1.0;             ///< multiplies the scores
  at::Tensor slopes;              ///< ALiBi: fp32 [heads] on qkv's device; undefined: none
  AttentionDropout dropout = {};  ///< dropout of the probabilities
  int64_t window = 0;             ///< most keys that a query sees, up to its own; 0: all
};
/// Views of qkv's parts.
struct QueriesKeysValues {
  at::Tensor q, k, v;  ///< [batch, sequence, heads or key_heads, d]
};
SelfAttention alibi(const at::Tensor& slopes, int64_t head_dim);  ///< BLOOM's attention
QueriesKeysValues split_heads(const at::Tensor& qkv, const SelfAttention& attention);  ///< views

/// Output of attention, with state for backward.
struct AttentionOutput {
  /// [batch, sequence, heads * d]; fp32 [batch, heads, sequence], private to the version that wrote
  /// it.
  at::Tensor output, log_sum_exp;
  at::Tensor random_state = {};  ///< state of dropout, private likewise
};
/// Attention with score(i, j) = scale q_i . k_j + slope (j - i), j <= i; mask and packed as in
/// functional.h. Packed tokens may be [sequences, packed.sequence], with rows of zeros after the
/// last one.
AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed = {});
/// Returns the gradient of qkv, in its layout.
at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed = {});

/// RMS norms of every query and key head (Qwen3), each over its d numbers.
struct HeadNorms {
  at::Tensor query, key;  ///< [d]: one weight for all heads
  double epsilon = 1e-6;  ///< added to the mean of squares
};
/// Saved input of head_norm_() for its backward.
struct HeadNormInput {
  /// [batch, sequence, heads + key_heads, d] before the norms; rstd fp32 (fp64 for fp64) [batch,
  /// sequence, heads + key_heads, 1].
  at::Tensor x, rstd;
};
/// Normalises the heads in place. qkv holds all queries, then all keys first. Returns the saved
/// input.
HeadNormInput head_norm_(const at::Tensor& qkv, const SelfAttention& attention,
                         const HeadNorms& norms);
/// Replaces qkv's gradient in place by that of the norms' inputs. query, key: accumulated through
/// sums; undefined: not wanted.
void head_norm_backward_(const at::Tensor& gradient, const SelfAttention& attention,
                         const HeadNorms& norms, const HeadNormInput& input,
                         const at::Tensor& query, const at::Tensor& key, ColumnSums& sums);

/// Whether attention with heads of d processes packed tokens by whole sequences; a shorter last
/// sequence is copied unless padding rows follow it. x [..., n]: any of the tokens.
bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed);

/// Kept keys and values of a batch's rows.
struct CachedRows {
  at::Tensor keys, values;  ///< [batch, capacity, key_heads, d]
  at::Tensor lengths;       ///< int64 [batch], tokens in each row; less than capacity
};
/// Decoding attention for one token per row: stores its key and value at index lengths[row] of the
/// cache and attends to all tokens up to it.
///   q          [batch, 1, heads, d]
///   k, v       [batch, 1, key_heads, d], as in causal_attention of attention.h
///   rows       written to; entries past a row's end are not read
///   attention  of which scale, slopes and window count
/// -> [batch, 1, heads * d]
at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const CachedRows& rows, const SelfAttention& attention);
/// Prefill of the cache: stores the rows' keys and values from index 0 on.
///   k, v          [1, tokens, key_heads, d], rows end to end as in packed.offsets
///   keys, values  [batch, capacity, key_heads, d], written to, only for the first `batch` rows;
///                 none has more than `capacity` tokens
void keep_in_cache(const at::Tensor& k, const at::Tensor& v, const at::Tensor& keys,
                   const at::Tensor& values, const PackedRows& packed);

/// Adds rows of gradient [..., n] to the rows of weight_gradient [vocabulary, n] with the same id.
/// Every id's sum is computed in fp32 and added once.
void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                        const at::Tensor& weight_gradient);

/// Logits x weight^T for cross_entropy_(): [rows, vocabulary], with rows padded for wide memory
/// accesses.
at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight);
/// Cross-entropy in place: logits [rows, vocabulary] -> (softmax - onehot) * scale (an fp32 device
/// scalar), 0 in rows labelled -100. row_loss [rows] fp32 receives -log softmax[label], or 0.
/// labels: int64 [rows]; one outside the vocabulary gives NaN. Rows of logits may be strided. scale
/// undefined: losses only, logits are unchanged.
void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss);
/// First half of cross_entropy_() for a slice of the logits' columns. Labels: at or above the
/// number of these columns for a target in another slice; negative, other than -100, for one in
/// none. statistics [2, rows] fp32 receives the rows' log-sum-exp and the label's logit: 0 in
/// another slice, NaN in none.
void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics);
/// Second half, in place, with the statistics [parts, 2, rows] of all slices; otherwise like
/// cross_entropy_().
void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss);

}  // namespace tessera::ops
