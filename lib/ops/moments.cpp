// SPDX-License-Identifier: MIT
#include "lib/ops/moments.h"

#include <ATen/ATen.h>

#include <limits>

#include "lib/ops/moment_map.h"

namespace tessera::ops {
namespace {

const MomentMap& map_of(bool is_signed) { return is_signed ? kSignedMap : kUnsignedMap; }

at::Tensor numbers_on(const float (&numbers)[kMomentCodes], int64_t count, at::Device device) {
  return at::tensor(at::ArrayRef<float>(numbers, static_cast<size_t>(count)), at::kFloat)
      .to(device);
}

// [blocks, kMomentBlock]; the last block is padded with zeros.
at::Tensor in_blocks(const at::Tensor& values) {
  const int64_t blocks = (values.numel() + kMomentBlock - 1) / kMomentBlock;
  return at::constant_pad_nd(values, {0, blocks * kMomentBlock - values.numel()})
      .view({blocks, kMomentBlock});
}

}  // namespace

void encode_moments(const at::Tensor& values, bool is_signed, const at::Tensor& codes,
                    const at::Tensor& largest) {
  if (values.numel() == 0) return;
  const MomentMap& map = map_of(is_signed);
  const at::Tensor blocks = in_blocks(values), most = blocks.abs().amax(1, /*keepdim=*/true);
  const at::Tensor scaled = at::where(most.eq(0), 0, blocks / most);
  const at::Tensor middles = numbers_on(map.middle, kMomentCodes - 1, values.device());
  const at::Tensor nearest = at::bucketize(scaled, middles);  // a tie takes the lower
  const at::Tensor place = at::maximum(nearest, blocks.gt(0).to(nearest.scalar_type()));
  at::Tensor(codes).copy_(
      (place - map.zero).remainder(kMomentCodes).flatten().narrow(0, 0, values.numel()));
  at::Tensor(largest).copy_(most.flatten());
}

at::Tensor decode_moments(const at::Tensor& codes, bool is_signed, const at::Tensor& largest) {
  if (codes.numel() == 0) return at::empty({0}, codes.options().dtype(at::kFloat));
  const at::Tensor values = numbers_on(map_of(is_signed).value_of, kMomentCodes, codes.device())
                                .index_select(0, codes.to(at::kInt));
  return (in_blocks(values) * largest.unsqueeze(1)).flatten().narrow(0, 0, codes.numel());
}

at::Tensor dithered_moments(const at::Tensor& values, const at::Tensor& step) {
  // second_moment_dither() without a copy to the host.
  const at::Tensor dither = (step.to(at::kLong) * int64_t{0x9E3779B9})
                                .bitwise_and_(int64_t{0xFFFFFFFF})
                                .bitwise_right_shift(16);
  const at::Tensor sum = values.contiguous().view(at::kInt).to(at::kLong) + dither;
  const at::Tensor rounded = sum.bitwise_right_shift(16).to(at::kShort).view(at::kBFloat16);
  return at::where(values.isnan(), std::numeric_limits<double>::quiet_NaN(), rounded);
}

}  // namespace tessera::ops
