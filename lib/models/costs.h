// SPDX-License-Identifier: MIT
#pragma once
// Costs of a language model's blocks, from the shapes of their parameters.
#include <cstdint>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

// Fills every block's cost and the model's flops_per_token: 6 FLOPs per matrix weight and token,
// forward and backward; of experts those that a token meets. The first block is the embedding,
// which is only looked up; the last is the head, whose matrix counts even if tied. Causal attention
// takes 12 FLOPs per layer, column of all heads and visible key: half of the sequence, or its part
// inside the window.
void fill_costs(ModelSpec& spec, const DecoderConfig& config);

// Number of elements of every parameter by block; tied ones once, under their owner.
std::vector<std::vector<int64_t>> parameter_sizes(const ModelSpec& spec);

}  // namespace tessera
