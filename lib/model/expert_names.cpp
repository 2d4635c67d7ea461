// SPDX-License-Identifier: MIT
#include "lib/model/expert_names.h"

#include <string_view>

#include "tessera/model/lora.h"

namespace tessera {
namespace {

constexpr std::string_view kUp = "gate_up_proj", kDown = "down_proj", kExperts = ".experts.",
                           kBaseLayer = ".base_layer";

}  // namespace

std::vector<std::string> layers_of_experts(const std::string& all_experts) {
  const size_t place = all_experts.rfind(kExperts);
  if (place == std::string::npos) return {};
  const std::string_view part = std::string_view(all_experts).substr(place + kExperts.size());
  if (part != kUp && part != kDown) return {};
  const bool mixtral = std::string_view(all_experts).substr(0, place).ends_with("block_sparse_moe");
  const auto name = [&](const char* usual, const char* of_mixtral) {
    return all_experts.substr(0, place + kExperts.size()) + (mixtral ? of_mixtral : usual);
  };
  if (part == kDown) return {name("down_proj", "w2")};
  return {name("gate_proj", "w1"), name("up_proj", "w3")};
}

std::string name_of_expert(const std::string& name, int64_t expert) {
  const size_t place = name.rfind(kExperts);
  if (place == std::string::npos) return name;
  return std::string(name).insert(place + kExperts.size(), std::to_string(expert) + ".");
}

std::string without_expert(const std::string& name) {
  const size_t place = name.rfind(kExperts);
  if (place == std::string::npos) return name;
  const size_t number = place + kExperts.size();
  const size_t end = name.find_first_not_of("0123456789", number);
  if (end == std::string::npos || end == number || name[end] != '.') return name;
  return std::string(name).erase(number, end + 1 - number);
}

std::string parameter_of_experts(const std::string& all_experts) {
  constexpr std::string_view kMixtral = "block_sparse_moe.experts.";
  const size_t place = all_experts.rfind(kMixtral);
  if (place == std::string::npos) return all_experts;
  return std::string(all_experts).replace(place, kMixtral.size(), "mlp.experts.");
}

std::string adapted_experts(const std::string& parameter, bool down_too) {
  const size_t dot = parameter.rfind('.');
  std::string folder = parameter.substr(0, dot);
  if (down_too && parameter.substr(dot + 1) == kUp) folder.append(kBaseLayer);
  return folder;
}

bool is_of_all_experts(const std::string& adapter) {
  if (!is_adapter(adapter)) return false;
  std::string_view module = adapter;
  module.remove_suffix(kLoraA.size() + 1);
  if (module.ends_with(kBaseLayer)) module.remove_suffix(kBaseLayer.size());
  return module.ends_with(".experts");
}

}  // namespace tessera
