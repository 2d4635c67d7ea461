// SPDX-License-Identifier: MIT
#include "lib/models/costs.h"

#include <algorithm>
#include <map>

namespace tessera {
namespace {

// Parameters on the meta device.
std::vector<Parameter> parameters_of(const BlockBuilder& builder) {
  return builder.build({.device = at::kMeta})->parameters();
}

// Average number of keys per query; 0: no window.
double keys_seen(int64_t window, double sequence) {
  const auto w = static_cast<double>(window);
  return window == 0 || w >= sequence ? sequence / 2 : w - w * w / (2 * sequence);
}

}  // namespace

void fill_costs(ModelSpec& spec, const DecoderConfig& config) {
  double met = 0;  // weights used per token
  const double share_of_experts =
      config.experts == 0
          ? 1
          : static_cast<double>(config.experts_per_token) / static_cast<double>(config.experts);
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    BlockCost& cost = spec.blocks[i].cost;
    for (const Parameter& parameter : parameters_of(spec.blocks[i])) {
      const int64_t numel = parameter.tensor.numel();
      cost.parameters += numel;
      const bool biases = parameter.name.ends_with("_bias");  // of experts, one row each
      const bool matrix = parameter.tensor.dim() >= 2 && !biases,
                 experts = parameter.tensor.dim() == 3 || biases;
      const double used = static_cast<double>(numel) * (experts ? share_of_experts : 1);
      if (matrix && i > 0) cost.flops_per_token += 6.0 * used;
      if (!matrix || i > 0) met += used;
    }
  }
  const auto width = static_cast<double>(config.heads * config.head_size());
  std::map<int64_t, double> layers_of_window;
  for (size_t i = 0; i + 2 < spec.blocks.size(); ++i) ++layers_of_window[config.window_of(i)];
  spec.flops_per_token = [=](int64_t sequence_length) {
    double seen = 0;  // keys, over all layers
    for (const auto& [window, layers] : layers_of_window) {
      seen += layers * keys_seen(window, static_cast<double>(sequence_length));
    }
    return 6.0 * met + 12.0 * width * seen;
  };
}

std::vector<std::vector<int64_t>> parameter_sizes(const ModelSpec& spec) {
  std::vector<std::vector<int64_t>> sizes;
  for (const BlockBuilder& builder : spec.blocks) {
    sizes.emplace_back();
    for (const Parameter& parameter : parameters_of(builder)) {
      const bool alias = std::ranges::any_of(spec.tied, [&](const TiedParameter& tie) {
        return tie.alias_block == builder.name && tie.alias_parameter == parameter.name;
      });
      if (!alias) sizes.back().push_back(parameter.tensor.numel());
    }
  }
  return sizes;
}

}  // namespace tessera
