// SPDX-License-Identifier: MIT
#pragma once
// AdamW on split masters beside the same on whole ones, on any device.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "lib/ops/moment_map.h"
#include "lib/ops/update.h"
#include "tessera/core/split_master.h"
#include "tests/support/test.hpp"

namespace tessera::test {

// Every sign, exponent and upper half of an fp32 value, with lower halves at, beside and far from
// the middle.
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

struct AdamWState {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, largest, largest_sq, low;
  at::Tensor remainder = {};

  AdamWState(const at::Tensor& values, at::ScalarType gradient_type, at::ScalarType moments)
      : parameter(values.clone()),
        gradient(at::randn_like(values).mul_(4).to(gradient_type)),
        exp_avg(at::zeros_like(values, moments)),
        exp_avg_sq(at::zeros_like(values, moments)),
        low(values.to(at::kBFloat16)) {
    settle(parameter);
    if (moments != at::kByte) return;
    const int64_t blocks = (values.numel() + ops::kMomentBlock - 1) / ops::kMomentBlock;
    largest = at::zeros({blocks}, values.options());
    largest_sq = at::zeros({blocks}, values.options());
  }
  AdamWState copy() const {
    AdamWState other = *this;
    for (at::Tensor* x : {&other.parameter, &other.exp_avg, &other.exp_avg_sq, &other.largest,
                          &other.largest_sq, &other.low, &other.remainder}) {
      if (x->defined()) *x = x->clone();
    }
    return other;
  }
  AdamWState split() const {
    AdamWState other = copy();
    other.remainder = at::empty_like(parameter, at::kShort);
    SplitMaster{other.low, other.remainder}.set(parameter);
    other.parameter = at::Tensor();
    return other;
  }
  at::Tensor masters() const { return MasterValues{parameter, {low, remainder}}.get(); }
  ops::AdamWRange range(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, first, count) : x;
    };
    const auto blocks = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, first / ops::kMomentBlock,
                                    (count + ops::kMomentBlock - 1) / ops::kMomentBlock)
                         : x;
    };
    return {.parameter = part(parameter),
            .gradient = part(gradient),
            .exp_avg = part(exp_avg),
            .exp_avg_sq = part(exp_avg_sq),
            .low_precision = part(low),
            .weight_decay = 0.1,
            .exp_avg_largest = blocks(largest),
            .exp_avg_sq_largest = blocks(largest_sq),
            .remainder = part(remainder)};
  }
  // Of whole blocks of moments; the last one may be shorter.
  std::vector<ops::AdamWRange> ranges(int64_t blocks) const {
    std::vector<ops::AdamWRange> all;
    const int64_t piece = blocks * ops::kMomentBlock;
    for (int64_t first = 0; first < gradient.numel(); first += piece) {
      all.push_back(range(first, std::min(piece, gradient.numel() - first)));
    }
    return all;
  }
};

inline void check_same(const AdamWState& split, const AdamWState& whole) {
  check_same_bits(split.masters(), whole.parameter);
  check_same_bits(split.low, whole.low);
  check_same_bits(split.exp_avg, whole.exp_avg);
  check_same_bits(split.exp_avg_sq, whole.exp_avg_sq);
  check_same_bits(split.largest, whole.largest);
  check_same_bits(split.largest_sq, whole.largest_sq);
  // What is published is the master as it was before it was settled, too.
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
        const AdamWState whole(at::randn({70'001}).to(device), gradient, moments);
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
    // A step of nothing, in which every value meets the rule as it is.
    INFO("moments " << moments << ", no change");
    const at::Tensor all = every_upper_half().to(device);
    AdamWState whole(all, at::kBFloat16, moments);
    whole.gradient.zero_();
    const AdamWState split = whole.split();
    whole.parameter.copy_(all);  // with the middles, which an update cannot but produce
    const ops::AdamWScalars scalars{scalar(0), scalar(1), {}, {}};
    update(whole.ranges(100), {}, scalars);
    update(split.ranges(100), {}, scalars);
    check_same(split, whole);
    const at::Tensor bits = whole.parameter.cpu().view(at::kInt), before = all.cpu().view(at::kInt);
    const at::Tensor moved = before.bitwise_and(0x1FFFF).eq(0x8000).to(at::kInt);
    const at::Tensor finite = all.cpu().isfinite();
    CHECK(bits.eq(before - moved).logical_or(finite.logical_not()).all().item<bool>());
    const at::Tensor low = whole.low.cpu(), rounded = all.cpu().to(at::kBFloat16);
    CHECK(low.eq(rounded).logical_or(finite.logical_not()).all().item<bool>());
  }
}

}  // namespace tessera::test
