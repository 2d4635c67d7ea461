// SPDX-License-Identifier: MIT
#pragma once
// Cost of a block of an exported program, counted from its operators.
#include "lib/program/block_parts.h"
#include "tessera/model/model_spec.h"

namespace tessera::program {

// 6 for each element of a matrix that a product uses; of experts as many as the router chooses.
BlockCost cost_of(const BlockParts& block);

// Forward and backward of attention for one token and one token of the sequence, causal attention
// counted at half: of scaled_dot_product_attention alone.
double attention_flops(const BlockParts& block);

}  // namespace tessera::program
