// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Adagrad (Duchi et al. 2011), like torch.optim.Adagrad; weight decay is added to the gradient.
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Options and defaults of torch.optim.Adagrad.
struct AdagradConfig {
  double lr_decay = 0.0;      ///< learning rate / (1 + (step - 1) * lr_decay)
  double epsilon = 1e-10;     ///< added to the root
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
};

/// Makes Adagrad, which keeps "sum" in fp32: 4 bytes per element.
OptimizerFactory make_adagrad(const AdagradConfig& config);

}  // namespace tessera
