// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// SGD with momentum (dampening 0, weight decay added to the gradient). The update rule is torch's;
/// decay applies only to matrices (docs/library/own-optimizer.md).
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Options with torch.optim.SGD's names.
struct SgdConfig {
  double momentum = 0.0;      ///< in [0, 1)
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
  bool nesterov = false;      ///< requires a momentum
};

/// Makes SGD, which keeps "momentum_buffer" with a momentum: fp32, 4 bytes per element.
OptimizerFactory make_sgd(const SgdConfig& config);

}  // namespace tessera
