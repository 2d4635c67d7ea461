// SPDX-License-Identifier: MIT
#include "backends/common/gradient_scale.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera {
namespace {

at::Tensor one_for_zero(const at::Tensor& divisor) {
  return at::where(divisor.eq(0), at::ones_like(divisor), divisor);
}

}  // namespace

void GradientScale::begin(bool adds) {
  const at::NoGradGuard no_grad;
  if (!adds) {
    factor_.reset();
    divided_.reset();
    divisors_ = {};
    parts_.gradients.begin_step();
    return;
  }
  const bool scaled = factor_.defined() && !factor_.is_same(divided_);
  if (scaled) fold();
  factor_.reset();
  divided_.reset();
  divisors_.before = divisors_.total;
  parts_.optimizer.gradients_reopened();
  parts_.replicated.keep_once();
  parts_.gradients.continue_step();
}

at::Tensor GradientScale::loss_gradient() {
  at::Tensor& gradient = parts_.step.loss_gradient;
  if (!gradient.defined()) {
    parts_.agreement.wait();
    if (!divisors_.seed.defined()) {
      divisors_.seed = parts_.agreement.targets().clamp_min(1).to(at::kDouble);
    }
    gradient = divisors_.seed.reciprocal().to(at::kFloat);
    if (parts_.loss_scale.defined()) gradient = gradient * parts_.loss_scale;
  }
  return gradient;
}

// Applies to a step that has ended; under gives_divisor() divisors are not targets.
void GradientScale::settle_targets() {
  const at::Tensor targets = parts_.agreement.targets().to(at::kDouble);
  if (!divisors_.seed.defined()) divisors_.seed = targets.clamp_min(1);
  if (divisors_.before.defined()) return settle(targets);
  divisors_.total = targets;
}

void GradientScale::settle(const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = divisor.to(at::kDouble);
  divisors_.total = divisors_.before.defined() ? divisors_.before + own : own;
  set((divisors_.seed / one_for_zero(divisors_.total)).to(at::kFloat));
}

void GradientScale::multiply(const at::Tensor& factor) {
  factor_ = factor_.defined() ? factor_ * factor : factor;
  handed_factor_ = handed_factor_.defined() ? handed_factor_ * factor : factor;
}

void GradientScale::fold() {
  if (!factor_.defined()) return;
  parts_.optimizer.gradients_reopened();
  const std::vector<ParameterUnit>& units = parts_.model.units;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const size_t segments = units[unit].frozen ? 0 : units[unit].layout.segments().size();
    for (size_t segment = 0; segment < segments; ++segment) {
      parts_.gradients.owned(unit, segment).mul_(factor_);
    }
  }
  factor_.reset();
  divided_.reset();
  if (divisors_.total.defined()) divisors_.seed = one_for_zero(divisors_.total);
}

}  // namespace tessera
