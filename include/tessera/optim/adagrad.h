// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Adagrad (Duchi et al. 2011) as torch.optim.Adagrad, weight decay added to the gradient.
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Options of torch.optim.Adagrad, with its defaults.
struct AdagradConfig {
  double lr_decay = 0.0;      ///< learning rate / (1 + (step - 1) * lr_decay)
  double epsilon = 1e-10;     ///< added to the root
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
};

/// Makes Adagrad, which keeps "sum" in fp32: 4 bytes an element.
OptimizerFactory make_adagrad(const AdagradConfig& config);

}  // namespace tessera
