// SPDX-License-Identifier: MIT
#pragma once
// AdamW's moments as they are kept: fp32, bf16 (rounded to nearest even), or 8 bits.
#include <ATen/core/Tensor.h>

namespace tessera {

// What the state of an optimizer calls them: "exp_avg" and "exp_avg" with this behind it.
inline constexpr const char* kLargestOfBlocks = "_absmax";

namespace ops {

// 1-D fp32 [n] to codes, uint8 [n], and the largest magnitudes of its blocks, fp32
// [ceil(n / kMomentBlock)]; in place of what these hold. Any device.
void encode_moments(const at::Tensor& values, bool is_signed, const at::Tensor& codes,
                    const at::Tensor& largest);
// fp32 [n].
at::Tensor decode_moments(const at::Tensor& codes, bool is_signed, const at::Tensor& largest);

}  // namespace ops
}  // namespace tessera
