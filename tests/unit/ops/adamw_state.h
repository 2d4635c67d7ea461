// SPDX-License-Identifier: MIT
#pragma once
// Inputs of AdamW in every form of masters and moments, on any device.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/ops/moment_map.h"
#include "lib/ops/update.h"
#include "tessera/core/split_master.h"

namespace tessera::test {

struct AdamWState {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, largest, largest_sq, low, remainder;

  // in_16_bits: low-precision parameters, or undefined.
  AdamWState(at::Tensor values, at::Tensor gradients, at::ScalarType moments, at::Tensor in_16_bits)
      : parameter(std::move(values)),
        gradient(std::move(gradients)),
        exp_avg(at::zeros_like(parameter, moments)),
        exp_avg_sq(at::zeros_like(parameter, moments)),
        low(std::move(in_16_bits)) {
    if (moments != at::kByte) return;
    largest = at::zeros({blocks_of(parameter.numel())}, parameter.options());
    largest_sq = at::zeros_like(largest);
  }
  static int64_t blocks_of(int64_t numel) {
    return (numel + ops::kMomentBlock - 1) / ops::kMomentBlock;
  }
  std::vector<at::Tensor*> tensors() {  // some of them undefined
    return {&parameter, &gradient, &exp_avg, &exp_avg_sq, &largest, &largest_sq, &low, &remainder};
  }
  AdamWState copy() const {
    AdamWState other = *this;
    for (at::Tensor* x : other.tensors()) {
      if (x->defined()) *x = x->clone();
    }
    return other;
  }
  // With split masters, beside low in bf16.
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
      return x.defined() ? x.narrow(0, first / ops::kMomentBlock, blocks_of(count)) : x;
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
  ops::AdamWRange range() const { return range(0, gradient.numel()); }
  // Ranges of whole moment blocks; the last may be shorter.
  std::vector<ops::AdamWRange> ranges(int64_t blocks) const {
    std::vector<ops::AdamWRange> all;
    const int64_t piece = blocks * ops::kMomentBlock;
    for (int64_t first = 0; first < gradient.numel(); first += piece) {
      all.push_back(range(first, std::min(piece, gradient.numel() - first)));
    }
    return all;
  }
};

}  // namespace tessera::test
