// SPDX-License-Identifier: MIT
#pragma once
// Parameters without weight decay, and with learning rates of their own.
#include "lib/settings/options.h"
#include "tessera/model/model_spec.h"

namespace tessera::programs {

// Applies --no_decay_names and --lr_groups. Throws Error(kInvalidArgument).
void add_update_rules(ModelSpec& model, const TrainingOptions& options);

}  // namespace tessera::programs
