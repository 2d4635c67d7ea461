// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model's gradients by parameter name, between backward and the step: for custom norms, clipping
/// and noise.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/state.h"

namespace tessera {

class Strategy;

/// This rank's piece of one parameter's gradient; valid during the visit. The pieces of all ranks
/// together are the whole gradient; under ddp every rank owns all of it.
struct GradientPiece {
  /// "block.parameter", e.g. "h.3.mlp.up.weight"; for a tied parameter, its owner's name
  const std::string& name;
  const TensorSlice& slice;  ///< which elements of the whole parameter, and its shape
  /// [slice.numel()] in the gradients' dtype, on the device: the memory that the step reads,
  /// writable in place. Ranks that hold the same elements must write the same values.
  const at::Tensor& value;
  /// Set on exactly one of the ranks that hold these elements: a sum over the counted pieces counts
  /// every element of the model once.
  bool counted = true;
};
/// Called for one piece after the other; makes no collective calls.
using GradientVisitor = std::function<void(const GradientPiece&)>;

/// Standard normal numbers for the elements of a piece: fp32 [slice.numel()], on its device. The
/// seed, the parameter's name and the element's index in the whole parameter determine each number,
/// so noise is the same under every layout. Padding gets 0. Use another seed every step.
/// (SplitMix64 of the three, then Box and Muller 1958.)
at::Tensor normal_noise(const GradientPiece& piece, uint64_t seed);

/// A parameter's whole gradient: an fp32 copy of the parameter's shape, the same on every rank.
/// name: as Strategy::gradient_norms() lists it, e.g. "module.up.weight" of from_module().
/// Collective; visits the whole model, so use Strategy::visit_gradients() for many parameters.
/// Throws Error(kInvalidArgument) for a name that no trained parameter has, and without a gradient.
at::Tensor gradient(Strategy& strategy, const std::string& name);

/// Sets a parameter's gradient to `value`, of the parameter's whole shape, the same on every rank.
/// Collective.
void set_gradient(Strategy& strategy, const std::string& name, const at::Tensor& value);

/// Clips every element to [-limit, limit], like torch::nn::utils::clip_grad_value_. Collective.
/// Throws Error(kInvalidArgument) unless the limit is positive.
void clip_gradient_values(Strategy& strategy, double limit);

}  // namespace tessera
