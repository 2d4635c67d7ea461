// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Operations of models as autograd functions. Each has a portable ATen version (the reference,
/// also used on the CPU) and, where it is faster, a CUDA version selected by device and dtype.
/// Formulas and layouts are part of the contract; tests compare both versions.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"

namespace tessera {
class DeferredEmbeddingRows;
}  // namespace tessera

namespace tessera::ops {

/// y = x W^T + b.  x [..., in], weight [out, in], bias [out] or undefined -> [..., out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// y = x W + b, as in GPT-2: weight [in, out].
at::Tensor linear_in_out(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// LayerNorm over the last dimension, statistics in fp32. x [..., n], weight [n], bias [n].
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon);

/// RMSNorm (Zhang, Sennrich 2019): x / sqrt(mean(x^2) + epsilon) * weight over the last dimension,
/// in fp32 and rounded once. x [..., n], weight [n].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// 0.5 x (1 + tanh(0.79788456 x (1 + 0.044715 x^2))), as in BLOOM and GPT-2.
at::Tensor gelu_tanh(const at::Tensor& x);

/// silu(gate) * up (Shazeer 2020), both of one shape; saves only its inputs for backward.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Zeroes elements with this probability and divides the others by its complement. Draws depend
/// only on the seed and the element's number (first, first + 1, ...), so recomputation repeats
/// them.
at::Tensor dropout(const at::Tensor& x, double probability, uint64_t seed, int64_t first = 0);
at::Tensor dropout(const at::Tensor& x, const Dropout& dropout);  ///< dropout() with options

/// Slopes of ALiBi for a head count (Press et al. 2022): fp32 [heads] on the CPU.
at::Tensor alibi_slopes(int64_t heads);

/// Causal attention with ALiBi, softmax in fp32.
///   qkv             [batch, sequence, heads * 3 * d], interleaved per head as BLOOM stores it:
///                   [heads, 3, d]
///   slopes          fp32 [heads] on qkv's device
///   attention_mask  [batch, sequence] bool, false keys are never attended to; undefined: none. A
///                   query without any visible key gives 0.
///   packed          rows inside the sequences, each attended to alone; not with a mask
///   dropout         of the probabilities
/// On CUDA a mask or dropout costs speed and memory (scores are materialised); padding on the right
/// needs no mask.
/// -> [batch, sequence, heads * d].  score(i, j) = q_i . k_j / sqrt(d) + slope (j - i), j <= i.
at::Tensor alibi_attention(const at::Tensor& qkv, const at::Tensor& slopes,
                           const at::Tensor& attention_mask, const PackedRows& packed = {},
                           const AttentionDropout& dropout = {});

/// Looks up rows of weight [vocabulary, n]: ids [...] int64 -> [..., n]. The gradient is added to
/// weight.grad() if defined (the Block contract), and returned to autograd otherwise.
/// deferred_rows: BlockContext::deferred_rows, for parameters with Parameter::row_gradient.
at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight,
                     const std::shared_ptr<DeferredEmbeddingRows>& deferred_rows = nullptr);

/// Sum over rows of -log softmax(hidden weight^T)[label], without rows labelled -100. Holds at most
/// chunk_rows rows of logits.
///   hidden [rows, n], weight [vocabulary, n], labels [rows] int64 -> fp32 scalar
///   loss_gradient: fp32 scalar on the device. With gradients enabled, forward computes the
///   gradients of hidden and weight, multiplied by it. weight's is added to weight.grad() if
///   defined (the Block contract), and returned to autograd otherwise. Backward expects
///   loss_gradient itself as incoming gradient. Undefined: backward scales by the incoming gradient
///   (one extra pass; for use outside strategies).
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& labels, const at::Tensor& loss_gradient = {},
                                int64_t chunk_rows = 1024);

/// Loss of a chunk: writes the losses of rows [first, first + logits.size(0)) to row_loss (fp32)
/// and replaces the logits by their gradients times scale. scale undefined: losses only.
using LossOfLogits = std::function<void(const at::Tensor& logits, int64_t first,
                                        const at::Tensor& scale, const at::Tensor& row_loss)>;
/// linear_cross_entropy() with any loss of the logits. on_gradient, unless empty, is called with
/// each chunk's rows of hidden's gradient once they are issued. With loss_gradient backward returns
/// them.
at::Tensor linear_loss(const at::Tensor& hidden, const at::Tensor& weight,
                       const at::Tensor& loss_gradient, int64_t chunk_rows,
                       const LossOfLogits& loss,
                       const std::function<void(const at::Tensor& rows)>& on_gradient = {});

}  // namespace tessera::ops
