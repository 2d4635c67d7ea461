// SPDX-License-Identifier: MIT
#pragma once
// Loss scaling of a run.
#include "lib/settings/options.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::programs {

// Configuration from --dtype and the loss scale flags.
LossScalerConfig loss_scaler_of(const TrainOptions& options);

}  // namespace tessera::programs
