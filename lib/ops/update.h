// SPDX-License-Identifier: MIT
#pragma once
// Whole-buffer operations of the optimizer step, without autograd. The ATen versions are the
// reference; CUDA has one kernel each.
#include <ATen/core/Tensor.h>

#include <span>

namespace tessera::ops {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  bool decoupled = true;  // weight decay; false: added to the gradient, as in torch's Adam
};

// Device scalars of a step, one element each: step_count fp64 (fp32 is converted), others fp32.
// skip and gradient_scale may be undefined (0 and 1).
struct AdamWScalars {
  at::Tensor learning_rate, step_count, gradient_scale, skip;
};

// A 1-D range with its own learning rate (lr_factor times the step's) and its own weight decay.
// Decoupled decay (Loshchilov, Hutter 2019): p -= lr * weight_decay * p.
// parameter fp32; gradient any float dtype; low_precision (or undefined) receives the updated
// parameter, rounded to its 16-bit dtype. With an int16 remainder the range is split: bf16
// low_precision and the remainder form the master (tessera/core/split_master.h), and parameter is
// undefined. Whole masters beside bf16 are rounded to the split format after the update, so that
// both forms have the same bits.
// Moments are fp32, bf16 or uint8. The update is in fp32 and reads the new moments before rounding.
// bf16: the first rounded to nearest even, the second with the step's dither (adamw_step.h).
// uint8: codes of lib/ops/moment_map.h in blocks from the range's start, with block scales fp32
// [ceil(n / kMomentBlock)].
struct AdamWRange {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, low_precision;
  double weight_decay = 0.0, lr_factor = 1.0;
  at::Tensor exp_avg_largest, exp_avg_sq_largest;  // block scales of uint8 moments
  at::Tensor remainder = {};                       // for split masters

  int64_t numel() const { return gradient.numel(); }
  // True if masters are rounded to the split format, see settle().
  bool settles() const {
    return low_precision.defined() && low_precision.scalar_type() == at::kBFloat16;
  }
};

// One AdamW update of all ranges, in place (few launches on CUDA). Gradients are multiplied by
// gradient_scale. step_count: t, counted from 1 and already incremented for this step.
void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars);

// Sum of squares of all tensors: fp32 scalar on their device. Non-finite inputs give a non-finite
// result.
at::Tensor square_sum(std::span<const at::Tensor> tensors);

// Results derived from the squared norm of a step's gradients, which carry the loss scale: fp32
// scalars on its device.
struct Clipping {
  at::Tensor norm;         // without the loss scale
  at::Tensor coefficient;  // min(1, max_norm / (norm + 1e-6)), or 1 without max_norm
  at::Tensor factor;       // coefficient / loss_scale, for the scaled gradients
  at::Tensor overflow;     // 1 where the norm is not finite, else 0
};
// squared_norm, loss_scale: fp32 scalars. max_norm 0: no clipping.
Clipping clipping(const at::Tensor& squared_norm, const at::Tensor& loss_scale, double max_norm);

}  // namespace tessera::ops
