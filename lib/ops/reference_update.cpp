// SPDX-License-Identifier: MIT
// Whole-buffer operations of the optimizer step with ATen.
#include <ATen/ATen.h>

#include "lib/ops/moments.h"
#include "lib/ops/reference.h"
#include "tessera/core/split_master.h"

namespace tessera::ops::reference {

void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars) {
  const bool may_skip = scalars.skip.defined();
  if (may_skip && scalars.skip.is_cpu() && scalars.skip.item<float>() != 0.0F) return;
  const at::Tensor step = scalars.step_count.to(at::kDouble);
  const auto correction = [&](double beta) { return 1.0 - at::pow(at::Scalar(beta), step); };
  const at::Tensor root = correction(options.beta2).sqrt_().to(at::kFloat);
  const at::Tensor step_size = (scalars.learning_rate / correction(options.beta1)).to(at::kFloat);
  const auto store = [&](const at::Tensor& to, const at::Tensor& value) {
    to.copy_(may_skip ? at::where(scalars.skip.ne(0), to, value) : value);
  };
  const auto store_moment = [&](const at::Tensor& to, bool is_signed, const at::Tensor& largest,
                                const at::Tensor& value) {
    if (to.scalar_type() == at::kBFloat16 && !is_signed) {
      return store(to, dithered_moments(value, step));
    }
    if (to.scalar_type() != at::kByte) return store(to, value.to(to.scalar_type()));
    const at::Tensor codes = at::empty_like(to), most = at::empty_like(largest);
    encode_moments(value, is_signed, codes, most);
    store(to, codes);
    store(largest, most);
  };
  for (const AdamWRange& range : ranges) {
    at::Tensor gradient = range.gradient.to(at::kFloat);
    if (scalars.gradient_scale.defined()) gradient = gradient * scalars.gradient_scale;
    const MasterValues master{range.parameter, {range.low_precision, range.remainder}};
    const at::Tensor old = master.get();
    if (!options.decoupled) gradient = gradient + old * range.weight_decay;
    const bool coded = range.exp_avg.scalar_type() == at::kByte;
    const at::Tensor before = coded ? decode_moments(range.exp_avg, true, range.exp_avg_largest)
                                    : range.exp_avg.to(at::kFloat);
    const at::Tensor before_sq =
        coded ? decode_moments(range.exp_avg_sq, false, range.exp_avg_sq_largest)
              : range.exp_avg_sq.to(at::kFloat);
    const at::Tensor exp_avg = at::lerp(before, gradient, 1.0 - options.beta1);
    const at::Tensor exp_avg_sq =
        (before_sq * options.beta2).addcmul_(gradient, gradient, 1.0 - options.beta2);
    const double keeps_from = options.decoupled ? range.lr_factor * range.weight_decay : 0.0;
    at::Tensor parameter = old * (1.0 - scalars.learning_rate * keeps_from);
    const at::Tensor own_step = range.lr_factor == 1 ? step_size : step_size * range.lr_factor;
    parameter.sub_(exp_avg / (exp_avg_sq.sqrt() / root).add_(options.epsilon) * own_step);
    store_moment(range.exp_avg, true, range.exp_avg_largest, exp_avg);
    store_moment(range.exp_avg_sq, false, range.exp_avg_sq_largest, exp_avg_sq);
    if (range.settles()) settle(parameter);
    if (may_skip) parameter = at::where(scalars.skip.ne(0), old, parameter);
    master.set(parameter);
    if (range.low_precision.defined()) range.low_precision.copy_(parameter);
  }
}

at::Tensor square_sum(std::span<const at::Tensor> tensors) {
  at::Tensor sum = at::zeros({}, tensors.front().options().dtype(at::kDouble));
  for (const at::Tensor& tensor : tensors) {
    sum.add_(at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).square_());
  }
  return sum.to(at::kFloat);
}

Clipping clipping(const at::Tensor& squared_norm, const at::Tensor& loss_scale, double max_norm) {
  const at::Tensor norm = squared_norm.sqrt() / loss_scale;
  const at::Tensor coefficient =
      max_norm > 0 ? (max_norm / (norm + 1e-6)).clamp_max(1.0) : at::ones_like(norm);
  return {norm, coefficient, coefficient / loss_scale,
          norm.isfinite().logical_not().to(at::kFloat)};
}

}  // namespace tessera::ops::reference
