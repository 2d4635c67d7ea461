// SPDX-License-Identifier: MIT
#pragma once
// The optimizer of a run.
#include "lib/settings/options.h"
#include "tessera/optim/optimizer.h"

namespace tessera::programs {

// As --optim, --optim_args and the flags of decay and betas say. Throws Error(kInvalidArgument) for
// arguments that the optimizer does not have.
OptimizerFactory optimizer_of(const TrainingOptions& options);

}  // namespace tessera::programs
