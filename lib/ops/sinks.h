// SPDX-License-Identifier: MIT
#pragma once
// Sinks of attention (gpt-oss): every head has one more score s, of a value 0. Kernels know nothing
// of it. With O and the logarithm L of the sum without it, L' = log(exp L + exp s) and
// O' = O exp(L - L'); backward of O' and L' by the same kernels is right, as probabilities are
// exp(score - L').
#include <ATen/core/Tensor.h>

#include "lib/ops/flash_spans.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops {

struct AttentionArguments;

// O and L become O', in place, and L'. sinks [heads].
void add_sinks_(FlashOutput& made, const at::Tensor& sinks);
// -sum over queries of exp(s - L') (gradient . O'), fp32 (fp64 for fp64) [heads]. gradient like
// output; forward: after add_sinks_().
at::Tensor gradient_of_sinks(const at::Tensor& gradient, const FlashOutput& forward,
                             const at::Tensor& sinks);

// softmax((scale q k^T, s)) v by scores, for autograd, softmax in fp32. The mask is bool, [...,
// queries, keys], or added. All arguments' heads are equal in number.
at::Tensor attend_with_sinks(const AttentionArguments& arguments, const at::Tensor& sinks);

// attention_to_cache() with sinks.
at::Tensor sink_attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const CachedRows& rows, const SelfAttention& attention,
                                   const at::Tensor& sinks);

}  // namespace tessera::ops
