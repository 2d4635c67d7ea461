// SPDX-License-Identifier: MIT
#pragma once
// Operations on meta tensors: they allocate what the real ones do and compute nothing.
// [Note: counting] tests/unit/plan and tests/gpu compare them with the allocations of the real
// ones.
#include <ATen/core/Tensor.h>

#include <span>

#include "lib/ops/attention_kernel.h"
#include "lib/ops/cuda_ops.h"

namespace tessera::ops {

constexpr int64_t kCountedMultiprocessors = 132;  // of the GPU that is modelled

// Allocation models of the CUDA versions; a null entry means the reference.
const CudaOps& counted_cuda_ops();

// at::scaled_dot_product_attention with its backward: the tensors of the kernel that LibTorch takes
// on the device that is stood for, or its products where it takes none.
at::Tensor counted_attention(const AttentionArguments& arguments);

// The result of square_sum(), after allocating its temporary memory.
at::Tensor counted_square_sum(std::span<const at::Tensor> tensors);

// Temporary memory of LibTorch's sum over the rows of x [rows, n]. Undefined where none is needed,
// and for tensors that are not meta.
at::Tensor counted_staging(const at::Tensor& x);

}  // namespace tessera::ops
