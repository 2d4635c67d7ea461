// SPDX-License-Identifier: MIT
#pragma once
// Storage formats of AdamW's moments: fp32, bf16, or 8 bits.
#include <ATen/core/Tensor.h>

namespace tessera {

// Suffix of the block scales in an optimizer's state: "exp_avg" and "exp_avg_absmax".
inline constexpr const char* kLargestOfBlocks = "_absmax";

namespace ops {

// Encodes fp32 [n] as codes uint8 [n] and block scales fp32 [ceil(n / kMomentBlock)], in place of
// their content. Any device.
void encode_moments(const at::Tensor& values, bool is_signed, const at::Tensor& codes,
                    const at::Tensor& largest);
// Returns fp32 [n].
at::Tensor decode_moments(const at::Tensor& codes, bool is_signed, const at::Tensor& largest);

// A second moment fp32 [n] in bf16, with a step's dither ([Note: dithered second moments]). step:
// scalar of any dtype on the same device. NaN stays NaN.
at::Tensor dithered_moments(const at::Tensor& values, const at::Tensor& step);

}  // namespace ops
}  // namespace tessera
