// SPDX-License-Identifier: MIT
#pragma once
// Divisors and factors between the sums that backward leaves and the gradient of the mean loss.
#include <ATen/core/Tensor.h>

#include <utility>

#include "backends/common/attached_model.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/step_agreement.h"
#include "backends/common/step_state.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

// [Note: a gradient of several calls]
// Backward of the first call divides by its targets, `seed`, and so do all calls that accumulate.
// One factor remains, seed / total, with total the sum of all divisors; it is part of the update's
// gradient scale. When gradients are read or scaled, the factor is multiplied into them, and total
// becomes the seed.
//
// Pending factor of one ShardingStrategy's gradients. Per step: begin(), loss_gradient() in every
// loss, settle_targets() or settle(), then multiply() and fold() as often as wanted, and updated().
class GradientScale {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    const AttachedModel& model;
    GradientStore& gradients;
    UnitOptimizer& optimizer;
    ReplicatedGradientReducer& replicated;
    StepAgreement& agreement;
    StepState& step;
    const at::Tensor& loss_scale;  // undefined: 1
  };
  explicit GradientScale(const Parts& parts) : parts_(parts) {}

  // adds: to the gradients of earlier calls.
  void begin(bool adds);
  // d(objective)/d(loss sum), equal for every micro-batch of the step: fp32 scalar.
  at::Tensor loss_gradient();
  // Divisor of a finished call: its targets, or what its losses have returned in their place.
  void settle_targets();
  void settle(const at::Tensor& divisor);
  // Replaces the pending factor: fp32 scalar.
  void set(const at::Tensor& factor) { factor_ = divided_ = factor; }
  void multiply(const at::Tensor& factor);
  // Multiplies the pending factor into the gradients.
  void fold();
  // An update has used the gradients.
  void updated() { factor_ = divided_; }

  // All pending factors, and the one without those of multiply(): fp32 scalars; undefined: 1.
  const at::Tensor& factor() const { return factor_; }
  const at::Tensor& divided() const { return divided_; }
  // Product of multiply()'s factors since the last call; undefined: 1.
  at::Tensor take_handed_factor() { return std::exchange(handed_factor_, {}); }

 private:
  const Parts parts_;
  at::Tensor factor_, divided_, handed_factor_;
  // fp64 device scalars. seed: the divisor already applied in backward; before and total: sums
  // over the earlier calls, and with this one.
  struct {
    at::Tensor seed, before, total;
  } divisors_;
};

}  // namespace tessera
