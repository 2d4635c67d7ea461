// SPDX-License-Identifier: MIT
#pragma once
// What the blocks of a language model cost, read off the shapes of their parameters.
#include <cstdint>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

// Fills cost of every block and flops_per_token of the model: 6 operations for each weight of a
// matrix that a token meets, forward and backward together. The first block is the embedding, whose
// tables are only looked up; the last is the head, whose matrix counts whether it is tied or not.
// The two products of a layer's causal attention take 12 operations for each column of all heads
// and key that a query sees: half of the sequence, or what of it lies in the window.
void fill_costs(ModelSpec& spec, const DecoderConfig& config);

// Elements of every parameter, block by block; tied ones once, at their owner.
std::vector<std::vector<int64_t>> parameter_sizes(const ModelSpec& spec);

}  // namespace tessera
