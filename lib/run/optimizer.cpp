// SPDX-License-Identifier: MIT
#include "lib/run/optimizer.h"

#include "lib/settings/lists.h"

namespace tessera::programs {

OptimizerFactory optimizer_of(const TrainingOptions& o) {
  return o.optim->make({.learning_rate = o.learning_rate,
                        .weight_decay = o.weight_decay,
                        .beta1 = o.adam_beta1,
                        .beta2 = o.adam_beta2,
                        .epsilon = o.adam_epsilon,
                        .moments = o.moments(),
                        .arguments = items_of(o.optim_args)});
}

}  // namespace tessera::programs
