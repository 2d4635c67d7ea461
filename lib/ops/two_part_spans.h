// SPDX-License-Identifier: MIT
#pragma once
// Attention of a span in two parts: the keys before its queries, and the square of its queries and
// their own keys, by LibTorch's cuDNN kernels, which align no last query with the last key.
#include "lib/ops/flash_spans.h"

namespace tessera::ops {

// Whether LibTorch takes cuDNN for both parts of every span of q [batch, queries, heads, d] and
// keys [batch, keys, key_heads, d]; for meta, whether it would on a Hopper GPU.
bool takes_two_parts(const at::Tensor& q, const at::Tensor& keys,
                     const std::vector<RowSpan>& spans);

// As flash_forward() and flash_backward() for a span of one row each, without a window. On CPUs,
// for tests, by LibTorch's kernel there. Parts are merged by their log-sum-exp; backward takes the
// whole's, so that each part's gradients are those of the whole.
FlashOutput two_part_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const RowSpan& span, double scale);
FlashGradients two_part_backward(const at::Tensor& gradient, const at::Tensor& q,
                                 const at::Tensor& k, const at::Tensor& v,
                                 const FlashOutput& forward, const RowSpan& span, double scale);

}  // namespace tessera::ops
