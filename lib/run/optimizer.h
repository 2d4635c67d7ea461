// SPDX-License-Identifier: MIT
#pragma once
// The optimizer of a run.
#include "lib/settings/options.h"
#include "tessera/optim/optimizer.h"

namespace tessera::programs {

// Factory from --optim, --optim_args and the flags for decay and betas. Throws
// Error(kInvalidArgument) for arguments that the optimizer lacks.
OptimizerFactory optimizer_of(const TrainingOptions& options);

}  // namespace tessera::programs
