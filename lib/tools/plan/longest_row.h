// SPDX-License-Identifier: MIT
#pragma once
// The longest row that a layout trains in the memory of its devices.
#include "lib/tools/plan/plan.h"

namespace tessera::programs {

// Tokens, a multiple of 256 unless it is the model's number of positions: the options' rows, made
// longer or shorter. 0: not even 256 fit. At most 16 Mi.
int64_t longest_row(const Prepared& model, const TrainOptions& options, const PlannedHosts& hosts,
                    std::shared_ptr<EqualPasses> passes);

}  // namespace tessera::programs
