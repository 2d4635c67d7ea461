// SPDX-License-Identifier: MIT
#include "tessera/train/early_stopping.h"

#include "tessera/core/error.h"

namespace tessera {

EarlyStopping::EarlyStopping(const EarlyStoppingConfig& config) : config_(config) {
  check(config.patience >= 1, ErrorCode::kInvalidArgument, "EarlyStopping: the patience is ",
        config.patience, "; it must be at least 1 evaluation");
  check(config.min_delta >= 0, ErrorCode::kInvalidArgument, "EarlyStopping: min_delta is ",
        config.min_delta, "; it must be 0 or positive");
}

bool EarlyStopping::observe(double loss) {
  if (loss < state_.best - config_.min_delta) {
    state_ = {.best = loss};
    return false;
  }
  return ++state_.bad >= config_.patience;
}

}  // namespace tessera
