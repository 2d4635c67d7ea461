// SPDX-License-Identifier: MIT
#include "backends/common/coded_products.h"

#include <algorithm>

#include "lib/model/linear_weights.h"

namespace tessera {

std::set<std::string> tied_to(const ModelSpec& model, const std::string& block) {
  std::set<std::string> names;
  for (const TiedParameter& tie : model.tied) {
    if (tie.owner_block == block) names.insert(tie.owner_parameter);
    if (tie.alias_block == block) names.insert(tie.alias_parameter);
  }
  return names;
}

CodedProducts coded_products(Block& block, const std::vector<Parameter>& parameters,
                             const ShardingRules& rules, const std::set<std::string>& tied,
                             size_t& next) {
  CodedProducts products;
  if (!rules.gathers_parameters || !rules.coded_layers.any()) return products;
  const bool persists = rules.granularity == ShardGranularity::kParameter;
  const int64_t least = persists ? rules.persistence_threshold : 0;
  for (const std::vector<std::string>& names : linear_weights_of(block, rules.coded_layers)) {
    std::vector<const Parameter*> weights;
    for (const std::string& name : names) {
      const auto found = std::ranges::find(parameters, name, &Parameter::name);
      if (found == parameters.end() || tied.contains(name)) continue;
      if (found->tensor.requires_grad() && found->tensor.numel() >= least) {
        weights.push_back(&*found);
      }
    }
    const auto updated_alike = [&](const Parameter* weight) {
      return weight->rule.whole_matrix == weights.front()->rule.whole_matrix;
    };
    if (weights.size() < names.size() || !std::ranges::all_of(weights, updated_alike)) continue;
    for (const std::string& name : names) products[name] = next;
    ++next;
  }
  return products;
}

}  // namespace tessera
