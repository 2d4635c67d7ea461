#pragma once
// What the blocks of a language model cost, read off the shapes of their parameters.
#include <cstdint>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

// Fills cost of every block and flops_per_token of the model: 6 operations for each weight of a
// matrix that a token meets, forward and backward together. The first block is the embedding, whose
// tables are only looked up; the last is the head, whose matrix counts whether it is tied or not;
// between them are `attention_width` columns of causal attention a block, the two products of which
// take half of 12 * width * sequence operations.
void fill_costs(ModelSpec& spec, int64_t attention_width);

// Elements of every parameter, block by block; tied ones once, at their owner.
std::vector<std::vector<int64_t>> parameter_sizes(const ModelSpec& spec);

}  // namespace tessera
