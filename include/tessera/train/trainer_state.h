// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Trainer state in checkpoints, beside the strategy's state and the position in the data.
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/core/json.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/lr_schedule.h"
#include "tessera/train/early_stopping.h"

namespace tessera {

/// State of a Trainer between two steps; equal on every rank.
struct TrainerState {
  int64_t steps = 0;                           ///< steps so far, skipped ones included
  int64_t updates = 0;                         ///< updates so far, which the schedule counts
  int64_t skipped_in_a_row = 0;                ///< latest consecutive skipped steps
  std::optional<LossScalerState> loss_scaler;  ///< with loss scaling
  std::optional<PlateauRate::State> plateau;   ///< with reduce_lr_on_plateau
  std::optional<EarlyStopping::State> early_stopping;  ///< with FitOptions::early_stopping

  std::string to_json() const;  ///< one JSON object
  /// Reads to_json()'s output; throws Error with the document's code for anything else.
  static TrainerState from_json(const Json& json);
  bool operator==(const TrainerState&) const = default;  ///< compares all members
};

}  // namespace tessera
