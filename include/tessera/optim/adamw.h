#pragma once
// AdamW with decoupled weight decay (Loshchilov, Hutter 2019). The update rule is torch's, the
// defaults are not: no decay, and where there is one only matrices have it (docs/extending.md).
#include "tessera/optim/optimizer.h"

namespace tessera {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // applied to ranges whose weight_decay flag is set
  // false: torch's Adam, which adds weight_decay * parameter to the gradient.
  bool adam_w_mode = true;
};

OptimizerFactory make_adamw(const AdamWConfig& config);

}  // namespace tessera
