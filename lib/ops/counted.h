// SPDX-License-Identifier: MIT
#pragma once
// Operations on tensors without memory: they allocate what the real ones do and compute nothing.
// [Note: counting] tests/unit/plan and tests/gpu hold them to what the real ones allocate.
#include <ATen/core/Tensor.h>

#include <span>

#include "lib/ops/cuda_ops.h"

namespace tessera::ops {

constexpr int64_t kCountedMultiprocessors = 132;  // of the GPU that is counted for

// What the CUDA versions allocate; an entry that is null stands for the reference.
const CudaOps& counted_cuda_ops();

// at::scaled_dot_product_attention with its backward. q [batch, heads, sequence, d]; mask: bool, or
// undefined.
at::Tensor counted_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& mask);

// The result of square_sum(), after what it takes while it runs.
at::Tensor counted_square_sum(std::span<const at::Tensor> tensors);

// What LibTorch's sum over the rows of x [rows, n] takes beside its result while it runs; undefined
// where that is nothing, and for tensors that are there.
at::Tensor counted_staging(const at::Tensor& x);

}  // namespace tessera::ops
