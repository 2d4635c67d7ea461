// SPDX-License-Identifier: MIT
#pragma once
// The loss scale of a run.
#include "lib/settings/options.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::programs {

// As --dtype and the flags of the loss scale say.
LossScalerConfig loss_scaler_of(const TrainOptions& options);

}  // namespace tessera::programs
