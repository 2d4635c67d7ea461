// SPDX-License-Identifier: MIT
#pragma once
// Which parameters a run decays, and which have learning rates of their own.
#include "lib/settings/options.h"
#include "tessera/model/model_spec.h"

namespace tessera::programs {

// As --no_decay_names and --lr_groups say. Throws Error(kInvalidArgument).
void add_update_rules(ModelSpec& model, const TrainingOptions& options);

}  // namespace tessera::programs
