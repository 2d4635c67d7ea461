// SPDX-License-Identifier: MIT
#pragma once
// The floating-point operations that a step's rows need, for MFU.
#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"

namespace tessera::programs {

// What mfu_ratio is, for people.
std::string mfu_formula();

// Mean over positions of the length of the row that each stands in: what packed rows attend to is
// their own. 0 without positions.
double mean_row_length(const std::vector<MicroBatch>& micro_batches);

// Of forward and backward over so many positions, of which so many are supervised: only those meet
// the head. The model must know flops_per_token.
double step_flops(const ModelSpec& model, double positions, double supervised, double row_length);

}  // namespace tessera::programs
