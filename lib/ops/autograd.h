// SPDX-License-Identifier: MIT
#pragma once
// What the autograd functions of this folder are made of.
#include <torch/csrc/autograd/custom_function.h>

namespace tessera::ops {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

}  // namespace tessera::ops
