// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Adagrad (Duchi et al. 2011) as torch.optim.Adagrad, weight decay added to the gradient.
#include "tessera/optim/optimizer.h"

namespace tessera {

struct AdagradConfig {
  double lr_decay = 0.0;
  double epsilon = 1e-10;
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
};

OptimizerFactory make_adagrad(const AdagradConfig& config);

}  // namespace tessera
