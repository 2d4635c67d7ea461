// SPDX-License-Identifier: MIT
#include "lib/run/loss_scaling.h"

namespace tessera::programs {

LossScalerConfig loss_scaler_of(const TrainOptions& o) {
  const bool dynamic = o.precision.loss_scale == 0;
  return {.enabled = o.parallel.precision.parameter == at::kHalf,
          .initial_scale = dynamic ? o.precision.initial_loss_scale : o.precision.loss_scale,
          .growth_factor = dynamic ? 2.0 : 1.0,
          .backoff_factor = dynamic ? 0.5 : 1.0,
          .growth_interval = o.precision.loss_scale_window,
          .min_scale = dynamic ? o.precision.min_loss_scale : o.precision.loss_scale,
          .max_scale = dynamic ? kLargestLossScale : o.precision.loss_scale};
}

}  // namespace tessera::programs
