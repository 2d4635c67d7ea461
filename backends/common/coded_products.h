// SPDX-License-Identifier: MIT
#pragma once
// Trained matrices that training passes gather as 8-bit codes (ShardingRules::coded_layers).
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/model/block.h"
#include "tessera/model/model_spec.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

// Names of the block's parameters that are tied to others, or to copies on other stages.
std::set<std::string> tied_to(const ModelSpec& model, const std::string& block);

// By parameter: the number of its product. Of the block's products whose weights are all trained,
// sharded, and neither tied nor updated in different ways. next: the first free number, which is
// moved on. The same on every rank of a data and a tensor axis.
using CodedProducts = std::map<std::string, size_t>;
CodedProducts coded_products(Block& block, const std::vector<Parameter>& parameters,
                             const ShardingRules& rules, const std::set<std::string>& tied,
                             size_t& next);

}  // namespace tessera
