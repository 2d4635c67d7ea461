// SPDX-License-Identifier: MIT
#include "lib/model/expert_names.h"

#include <string_view>

namespace tessera {
namespace {

constexpr std::string_view kUp = "gate_up_proj", kDown = "down_proj", kExperts = ".experts.";

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

}  // namespace tessera
