// SPDX-License-Identifier: MIT
#pragma once
// A step that was issued and whose values the host has not read yet.
#include <optional>

#include "tessera/core/async_scalars.h"
#include "tessera/train/trainer.h"

namespace tessera {

struct Trainer::Pending {
  StepReport report;
  std::optional<AsyncScalars> values, counters;  // until they are read
};

}  // namespace tessera
