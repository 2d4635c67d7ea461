// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Lion (Chen et al. 2023): the sign of a momentum, and decoupled weight decay.
#include "tessera/optim/optimizer.h"

namespace tessera {

struct LionConfig {
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
};

OptimizerFactory make_lion(const LionConfig& config);

}  // namespace tessera
