// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a training loop has to remember beside its strategy's state and its place in the data.
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/core/json.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/lr_schedule.h"
#include "tessera/train/early_stopping.h"

namespace tessera {

/// Of a Trainer between two steps; the same on every rank.
struct TrainerState {
  int64_t steps = 0;                                   ///< made, skipped ones included
  int64_t updates = 0;                                 ///< made; the schedule counts these
  int64_t skipped_in_a_row = 0;                        ///< the latest ones
  std::optional<LossScalerState> loss_scaler;          ///< where losses are scaled
  std::optional<PlateauRate::State> plateau;           ///< of reduce_lr_on_plateau
  std::optional<EarlyStopping::State> early_stopping;  ///< of FitOptions::early_stopping

  std::string to_json() const;  ///< one JSON object
  /// Throws Error of the document's code for what to_json() does not write.
  static TrainerState from_json(const Json& json);
  bool operator==(const TrainerState&) const = default;  ///< compares all members
};

}  // namespace tessera
