// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model's gradient by the names of its parameters, between backward and the step: norms of one's
/// own, clipping, noise.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/state.h"

namespace tessera {

class Strategy;

/// What this rank owns of one parameter's gradient; valid during the visit. The pieces of all ranks
/// together are the whole gradient; under ddp every rank owns all of it.
struct GradientPiece {
  /// "block.parameter", e.g. "h.3.mlp.up.weight"; of tied ones the owner's
  const std::string& name;
  const TensorSlice& slice;  ///< which elements of the whole parameter, and its shape
  /// [slice.numel()] in the gradients' dtype, on the device: the memory that the step reads. What
  /// is written to it is the gradient. Ranks that hold the same elements must write the same.
  const at::Tensor& value;
  /// One of the ranks that hold these elements has it set: what is summed over all pieces that have
  /// it counts every element of the model once.
  bool counted = true;
};
/// Called for one piece after the other; makes no collective calls.
using GradientVisitor = std::function<void(const GradientPiece&)>;

/// Standard normal numbers for the elements of a piece: fp32 [slice.numel()], on its device. An
/// element's number follows from the seed, the parameter's name and the element's place in the
/// whole parameter, so that noise is the same under every layout; padding has 0. Take another seed
/// every step.
/// (SplitMix64 of the three, then Box and Muller 1958.)
at::Tensor normal_noise(const GradientPiece& piece, uint64_t seed);

/// A parameter's gradient in full: fp32, of the parameter's whole shape, a copy, the same on every
/// rank. name: as Strategy::gradient_norms() lists it, e.g. "module.up.weight" of from_module().
/// Collective; it visits the whole model, so for many parameters call Strategy::visit_gradients().
/// Throws Error(kInvalidArgument) for a name that no trained parameter has, and where there is no
/// gradient.
at::Tensor gradient(Strategy& strategy, const std::string& name);

/// The inverse: the gradient becomes `value`, of the parameter's whole shape, the same on every
/// rank. Collective.
void set_gradient(Strategy& strategy, const std::string& name, const at::Tensor& value);

/// Clips every element to [-limit, limit], as torch::nn::utils::clip_grad_value_. Collective.
/// Throws Error(kInvalidArgument) for a limit that is not positive.
void clip_gradient_values(Strategy& strategy, double limit);

}  // namespace tessera
