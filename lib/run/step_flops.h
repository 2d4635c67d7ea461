// SPDX-License-Identifier: MIT
#pragma once
// FLOPs of a step's rows, for MFU.
#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"

namespace tessera::programs {

// Formula of mfu_ratio in words.
std::string mfu_formula();

// Mean over tokens of their packed row's length, since attention stays inside rows. 0 without
// positions.
double mean_row_length(const std::vector<MicroBatch>& micro_batches);

// FLOPs of forward and backward over `positions` tokens, of which `supervised` ones reach the head.
// The model must have flops_per_token.
double step_flops(const ModelSpec& model, double positions, double supervised, double row_length);

}  // namespace tessera::programs
