// SPDX-License-Identifier: MIT
#pragma once
// AdamW on split masters against the same on whole ones, on any device.
#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "lib/ops/update.h"
#include "tessera/core/split_master.h"
#include "tests/support/test.hpp"
#include "tests/unit/ops/adamw_state.h"

namespace tessera::test {

// Every sign, exponent and upper half of an fp32 value, with lower halves at, beside and far from
// the midpoint.
inline at::Tensor every_upper_half() {
  std::vector<at::Tensor> all;
  const at::Tensor upper = at::arange(-32768, 32768, at::kInt).bitwise_left_shift(16);
  for (const int64_t lower : {0, 1, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x3A5C}) {
    all.push_back((upper + lower).view(at::kFloat));
  }
  return at::cat(all);
}

inline void check_same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (!expected.defined()) return;
  const at::Tensor a = actual.cpu(), b = expected.cpu();
  REQUIRE(a.scalar_type() == b.scalar_type());
  if (a.element_size() == 1) {
    CHECK(a.equal(b));
    return;
  }
  const at::ScalarType bits = a.element_size() == 4 ? at::kInt : at::kShort;
  const at::Tensor same = a.view(bits).eq(b.view(bits));
  CHECK(same.logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>());
}

// With bf16 and masters that can be split.
inline AdamWState settled_state(const at::Tensor& values, at::ScalarType gradient_type,
                                at::ScalarType moments) {
  const at::Tensor low = values.to(at::kBFloat16), parameter = values.clone();
  settle(parameter);
  return {parameter, at::randn_like(values).mul_(4).to(gradient_type), moments, low};
}

inline void check_same(const AdamWState& split, const AdamWState& whole) {
  check_same_bits(split.masters(), whole.parameter);
  check_same_bits(split.low, whole.low);
  check_same_bits(split.exp_avg, whole.exp_avg);
  check_same_bits(split.exp_avg_sq, whole.exp_avg_sq);
  check_same_bits(split.largest, whole.largest);
  check_same_bits(split.largest_sq, whole.largest_sq);
  // The published bf16 value is also that of the master before rounding.
  check_same_bits(whole.low, whole.parameter.to(at::kBFloat16));
}

using Update = std::function<void(const std::vector<ops::AdamWRange>&, const ops::AdamWOptions&,
                                  const ops::AdamWScalars&)>;

// Some steps in both forms.
inline void check_split_masters(at::Device device, const Update& update) {
  const auto scalar = [&](double value) {
    return at::full({}, value, at::TensorOptions(at::kFloat).device(device));
  };
  for (const auto moments : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const auto gradient : {at::kFloat, at::kBFloat16}) {
      for (const bool decoupled : {true, false}) {
        INFO("moments " << moments << ", gradient " << gradient << (decoupled ? "" : ", Adam"));
        const AdamWState whole = settled_state(at::randn({70'001}).to(device), gradient, moments);
        const AdamWState split = whole.split();
        for (int step = 1; step <= 4; ++step) {
          const ops::AdamWOptions options{.epsilon = 1e-6, .decoupled = decoupled};
          const ops::AdamWScalars scalars{scalar(0.01), scalar(step), scalar(0.3),
                                          scalar(step == 3 ? 1 : 0)};
          update(whole.ranges(17), options, scalars);
          update(split.ranges(17), options, scalars);
          check_same(split, whole);
        }
      }
    }
    // A zero update, in which the rule applies to every value.
    INFO("moments " << moments << ", no change");
    const at::Tensor all = every_upper_half().to(device);
    AdamWState whole = settled_state(all, at::kBFloat16, moments);
    whole.gradient.zero_();
    const AdamWState split = whole.split();
    whole.parameter.copy_(all);  // includes midpoints, which updates may produce
    const ops::AdamWScalars scalars{scalar(0), scalar(1), {}, {}};
    update(whole.ranges(100), {}, scalars);
    update(split.ranges(100), {}, scalars);
    check_same(split, whole);
    const at::Tensor bits = whole.parameter.cpu().view(at::kInt), before = all.cpu().view(at::kInt);
    const at::Tensor moved = before.bitwise_and(0x1FFFF).eq(0x8000).to(at::kInt);
    const at::Tensor finite = all.cpu().isfinite();
    const at::Tensor zero = all.cpu().eq(0);  // whose sign a fused multiply-add may change
    CHECK(whole.parameter.cpu().masked_select(zero).eq(0).all().item<bool>());
    CHECK(bits.eq(before - moved)
              .logical_or(finite.logical_not())
              .logical_or(zero)
              .all()
              .item<bool>());
    const at::Tensor low = whole.low.cpu(), rounded = all.cpu().to(at::kBFloat16);
    CHECK(low.eq(rounded).logical_or(finite.logical_not()).all().item<bool>());
  }
}

}  // namespace tessera::test
