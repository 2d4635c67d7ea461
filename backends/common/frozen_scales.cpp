// SPDX-License-Identifier: MIT
#include "backends/common/frozen_scales.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/model/linear_weights.h"

namespace tessera {
namespace {

// The least power of two, and at least 2^-24, that brings this largest magnitude (fp32 []) to
// e4m3's largest code: a code times it is exact in 16 bits. Of NaN or infinity all values become
// NaN.
at::Tensor scale_for(const at::Tensor& largest) {
  constexpr int kFraction = 0x7fffff, kExponent = 0x7f800000;
  const at::Tensor quotient = (largest / 448).clamp_min(0x1p-24);
  const at::Tensor rounded_up = (quotient.view(at::kInt) + kFraction).bitwise_and(kExponent);
  return rounded_up.view(at::kFloat);
}

}  // namespace

at::Tensor aligned_scales(const std::vector<at::Tensor>& scales) {
  constexpr int64_t kNumbers = 4;  // in 16 bytes
  const at::Tensor values = at::stack(scales);
  const at::Tensor room = at::zeros({values.numel(), kNumbers}, values.options());
  return room.select(1, 0).copy_(values);
}

FrozenScales frozen_scales(Block& block, const std::vector<Parameter>& parameters) {
  FrozenScales scales;
  for (const std::vector<std::string>& names : linear_weights_of(block)) {
    std::vector<const Parameter*> weights;
    for (const std::string& name : names) {
      const auto found = std::ranges::find(parameters, name, &Parameter::name);
      if (found != parameters.end() && !found->tensor.requires_grad()) weights.push_back(&*found);
    }
    if (weights.empty() || weights.size() < names.size()) continue;
    at::Tensor largest = at::zeros({1}, weights.front()->tensor.options().requires_grad(false));
    for (const Parameter* weight : weights) {
      if (weight->tensor.numel() == 0) continue;
      largest = at::maximum(largest, weight->tensor.detach().abs().amax());
    }
    Communicator* const cut = weights.front()->placement.cut;
    if (cut != nullptr) cut->all_reduce(largest, ReduceOp::kMax).wait();
    const at::Tensor scale = scale_for(largest).squeeze(0);
    for (const std::string& name : names) scales[name] = scale;
  }
  return scales;
}

}  // namespace tessera
