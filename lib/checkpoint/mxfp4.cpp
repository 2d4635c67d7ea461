// SPDX-License-Identifier: MIT
#include "lib/checkpoint/mxfp4.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kCodesOfScale = 32, kBytesOfScale = kCodesOfScale / 2;
constexpr int kBias = 127, kNan = 255;

// By code: sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// Codes of so many scales, one after the other, into `values`.
void decode(const uint8_t* bytes, const uint8_t* scales, int64_t count, at::BFloat16* values) {
  for (int64_t i = 0; i < count; ++i) {
    const float scale = std::ldexp(1.0F, int(scales[i]) - kBias);
    for (int64_t byte = 0; byte < kBytesOfScale; ++byte) {
      const uint8_t codes = *bytes++;
      *values++ = at::BFloat16(kValues[codes & 15U] * scale);
      *values++ = at::BFloat16(kValues[codes >> 4U] * scale);
    }
  }
}

}  // namespace

at::Tensor decode_mxfp4(const at::Tensor& blocks, const at::Tensor& scales,
                        const std::string& origin) {
  check(blocks.scalar_type() == at::kByte && scales.scalar_type() == at::kByte &&
            blocks.dim() == 4 && blocks.size(3) == kBytesOfScale &&
            blocks.sizes().slice(0, 3) == scales.sizes(),
        ErrorCode::kDataLoss, origin,
        ": MXFP4 needs bytes [experts, out, in / 32, 16] and [experts, ", "out, in / 32], found ",
        blocks.scalar_type(), " ", blocks.sizes(), " and ", scales.scalar_type(), " ",
        scales.sizes());
  check(scales.numel() == 0 || !scales.eq(kNan).any().item<bool>(), ErrorCode::kDataLoss, origin,
        ": a scale is 255, NaN");
  const int64_t experts = blocks.size(0), out = blocks.size(1), groups = blocks.size(2);
  const at::Tensor codes = blocks.contiguous(), exponents = scales.contiguous();
  const at::Tensor all = at::empty({experts, groups * kCodesOfScale, out}, at::kBFloat16);
  // One expert at a time: the file's rows are outputs.
  const at::Tensor rows = at::empty({out, groups * kCodesOfScale}, at::kBFloat16);
  for (int64_t expert = 0; expert < experts; ++expert) {
    decode(codes.const_data_ptr<uint8_t>() + expert * out * groups * kBytesOfScale,
           exponents.const_data_ptr<uint8_t>() + expert * out * groups, out * groups,
           rows.mutable_data_ptr<at::BFloat16>());
    all.select(0, expert).copy_(rows.t());
  }
  return all;
}

}  // namespace tessera
