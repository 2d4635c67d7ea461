// SPDX-License-Identifier: MIT
#pragma once
// Building blocks of this folder's autograd functions.
#include <torch/csrc/autograd/custom_function.h>

namespace tessera::ops {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

}  // namespace tessera::ops
