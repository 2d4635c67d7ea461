// SPDX-License-Identifier: MIT
#pragma once
// Weights in MXFP4 (OCP Microscaling Formats 1.0), as in the files of gpt-oss: e2m1 codes, of which
// 32 along the inputs share a scale, a power of two.
#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

// blocks uint8 [experts, out, in / 32, 16], two codes a byte, the lower one first; scales uint8
// [experts, out, in / 32], exponents plus 127 -> bf16 [experts, in, out], exact but for
// overflow, as transformers' convert_moe_packed_tensors().
// Throws Error(kDataLoss), which begins with `origin`, for other dtypes and shapes, and for a scale
// of 255, which is NaN.
at::Tensor decode_mxfp4(const at::Tensor& blocks, const at::Tensor& scales,
                        const std::string& origin);

}  // namespace tessera
