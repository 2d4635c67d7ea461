// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// An optimizer of your own as one function, under every strategy:
///   make_elementwise("SignSgd", {}, [](const ElementwiseStep& step, std::vector<at::Tensor>&) {
///     return step.parameter - step.learning_rate * step.gradient.sign();
///   })
#include <functional>
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera {

/// A piece of a parameter, or several pieces one behind the other: 1-D, fp32, of any length.
struct ElementwiseStep {
  at::Tensor parameter, gradient;  ///< the gradient is clipped and without loss scale
  at::Tensor learning_rate;        ///< scalar on the device, the group's factor in it
  at::Tensor step;                 ///< scalar on the device: 1 in the first step
  double weight_decay = 0;         ///< of this piece: 0 where it has none
};
/// Returns what the parameter becomes, and replaces each state by what it becomes; nothing is
/// changed in place. state: of the parameter's shape, zeros at first.
using ElementwiseUpdate =
    std::function<at::Tensor(const ElementwiseStep& step, std::vector<at::Tensor>& state)>;

/// state_names: of what it keeps for every element, as checkpoints call it. weight_decay: of ranges
/// that decay. The function is tried on a small parameter. Throws Error(kInvalidArgument) where it
/// does not treat every element alone, returns another shape, or changes something in place.
OptimizerFactory make_elementwise(const std::string& name, std::vector<std::string> state_names,
                                  ElementwiseUpdate update, double weight_decay = 0);

}  // namespace tessera
