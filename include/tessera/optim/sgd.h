// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Stochastic gradient descent with momentum (dampening 0, weight decay added to the gradient). The
/// update rule is torch's; decay only counts for matrices (docs/library/extending.md).
#include "tessera/optim/optimizer.h"

namespace tessera {

struct SgdConfig {
  double momentum = 0.0;
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
  bool nesterov = false;
};

OptimizerFactory make_sgd(const SgdConfig& config);

}  // namespace tessera
