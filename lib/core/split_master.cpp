// SPDX-License-Identifier: MIT
#include "tessera/core/split_master.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kAtOnce = int64_t{1} << 24;  // elements; bounds temporary memory

template <typename Fn>
void in_parts(int64_t numel, const Fn& fn) {
  const at::NoGradGuard no_grad;
  for (int64_t first = 0; first < numel; first += kAtOnce) {
    fn(first, std::min(kAtOnce, numel - first));
  }
}

}  // namespace

SplitMaster SplitMaster::narrow(int64_t first, int64_t count) const {
  return {rounded.narrow(0, first, count), remainder.narrow(0, first, count)};
}

at::Tensor SplitMaster::join() const {
  const at::Tensor bits = rounded.view(at::kShort).to(at::kInt).bitwise_left_shift_(16);
  return bits.add_(remainder).view(at::kFloat);
}

void SplitMaster::set(const at::Tensor& values) const {
  in_parts(values.numel(), [&](int64_t first, int64_t count) {
    const at::Tensor part = values.view(-1).narrow(0, first, count);
    const at::Tensor settled =
        part.to(remainder.options().dtype(at::kFloat), /*non_blocking=*/false, /*copy=*/true);
    settle(settled);
    rounded.view(-1).narrow(0, first, count).copy_(settled);
    // The low 16 bits, signed, so that no conversion wraps.
    const at::Tensor bits = settled.view(at::kInt).bitwise_left_shift_(16);
    remainder.view(-1).narrow(0, first, count).copy_(bits.bitwise_right_shift_(16));
  });
}

namespace {

// int32, from the bits of fp32: 1 where settle() changes the value, else 0.
at::Tensor moves_of(const at::Tensor& bits) { return bits.bitwise_and(0x1FFFF).eq_(0x8000); }

}  // namespace

at::Tensor settle_moves(const at::Tensor& values) {
  return moves_of(values.view(at::kInt)).to(at::kBool);
}

void settle(const at::Tensor& values) {
  in_parts(values.numel(), [&](int64_t first, int64_t count) {
    const at::Tensor bits = values.view(-1).narrow(0, first, count).view(at::kInt);
    bits.sub_(moves_of(bits));
  });
}

MasterValues MasterValues::narrow(int64_t first, int64_t count) const {
  if (split.defined()) return {{}, split.narrow(first, count)};
  return {whole.narrow(0, first, count), {}};
}

at::Tensor MasterValues::get() const { return split.defined() ? split.join() : whole; }

void MasterValues::set(const at::Tensor& values) const {
  if (split.defined()) return split.set(values);
  at::Tensor(whole).copy_(values);
}

}  // namespace tessera
