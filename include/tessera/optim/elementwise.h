// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Custom element-wise optimizers as one function, under every strategy:
///   make_elementwise("SignSgd", {}, [](const ElementwiseStep& step, std::vector<at::Tensor>&) {
///     return step.parameter - step.learning_rate * step.gradient.sign();
///   })
#include <functional>
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera {

/// A piece of a parameter, or several pieces end to end: 1-D, fp32, of any length.
struct ElementwiseStep {
  at::Tensor parameter, gradient;  ///< the gradient is clipped and unscaled
  at::Tensor learning_rate;        ///< scalar on the device, including the group's factor
  at::Tensor step;                 ///< scalar on the device; 1 in the first step
  double weight_decay = 0;         ///< decay of this piece; 0: none
};
/// Returns the new parameter and replaces each state tensor by its new value; changes nothing in
/// place. state: tensors of the parameter's shape, initially zeros.
using ElementwiseUpdate =
    std::function<at::Tensor(const ElementwiseStep& step, std::vector<at::Tensor>& state)>;

/// Makes the optimizer. state_names: names in checkpoints of its per-element state. weight_decay:
/// for ranges that decay. Tries the function on a small parameter. Throws Error(kInvalidArgument)
/// if it is not element-wise, returns another shape, or changes something in place.
OptimizerFactory make_elementwise(const std::string& name, std::vector<std::string> state_names,
                                  ElementwiseUpdate update, double weight_decay = 0);

}  // namespace tessera
