// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Lion (Chen et al. 2023): sign of a momentum, with decoupled weight decay.
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Options with the paper's names.
struct LionConfig {
  double beta1 = 0.9, beta2 = 0.99;  ///< for the update and the momentum, in [0, 1)
  double weight_decay = 0.0;         ///< applied to ranges whose weight_decay flag is set
};

/// Makes Lion, which keeps "exp_avg" in fp32: 4 bytes per element.
OptimizerFactory make_lion(const LionConfig& config);

}  // namespace tessera
