// SPDX-License-Identifier: MIT
#pragma once
// LibTorch's flash kernels on a span of rows.
#include <ATen/core/Tensor.h>

#include <vector>

#include "lib/ops/row_spans.h"

namespace tessera::ops {

// Output and what backward needs of it.
struct FlashOutput {
  at::Tensor output;  // [sequences, queries, heads, d]
  at::Tensor log_sum_exp, random_state, random_offset = {};
};
struct FlashGradients {
  at::Tensor q, k, v;
};

// True on GPUs, and for meta that stands for one, where the kernels take heads of q's size.
bool takes_flash(const at::Tensor& q);

// The span's queries [sequences, queries, heads, d], keys and values [sequences, keys, key_heads,
// d]. window: 0 for none.
FlashOutput flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const RowSpan& span, double scale, int64_t window);
FlashGradients flash_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const FlashOutput& forward, const RowSpan& span,
                              double scale, int64_t window);

}  // namespace tessera::ops
