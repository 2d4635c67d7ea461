// SPDX-License-Identifier: MIT
#include "lib/checkpoint/expert_files.h"

#include <set>
#include <string_view>

#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr std::string_view kUp = ".experts.gate_up_proj", kDown = ".experts.down_proj";
constexpr std::string_view kMixtral = ".block_sparse_moe.", kUsual = ".mlp.";

std::string replaced(const std::string& name, std::string_view from, std::string_view to) {
  const size_t place = name.find(from);
  if (place == std::string::npos) return "";
  return std::string(name).replace(place, from.size(), to);
}

}  // namespace

std::vector<std::string> names_of_expert(const std::string& all_experts, int64_t expert) {
  const bool is_up = all_experts.ends_with(kUp), is_down = all_experts.ends_with(kDown);
  if (!is_up && !is_down) return {};
  const std::string layer =
      all_experts.substr(0, all_experts.size() - (is_up ? kUp : kDown).size());
  const std::string prefix = layer + ".experts." + std::to_string(expert) + ".";
  const bool mixtral = std::string_view(layer).ends_with(kMixtral.substr(0, kMixtral.size() - 1));
  const auto name = [&](const char* ours, const char* of_mixtral) {
    return prefix + (mixtral ? of_mixtral : ours) + ".weight";
  };
  if (is_down) return {name("down_proj", "w2")};
  return {name("gate_proj", "w1"), name("up_proj", "w3")};
}

std::string stored_names_by_expert(const ModelSpec& model) {
  bool any = false;
  JsonWriter out;
  out.begin_object();
  const std::vector<ParameterInfo> parameters = parameters_of(model);
  std::set<std::string> known;
  for (const ParameterInfo& parameter : parameters) {
    known.insert(parameter.block + "." + parameter.name);
  }
  for (const ParameterInfo& parameter : parameters) {
    if (parameter.alias) continue;
    const std::string stored = model.stored_name(parameter.block, parameter.name);
    out.key(parameter.block + "." + parameter.name);
    // Experts with biases (gpt-oss) are one tensor in files, too.
    const bool biased = known.contains(parameter.block + "." + parameter.name + "_bias");
    if (parameter.shape.size() != 3 || biased || names_of_expert(stored, 0).empty()) {
      out.value(stored);
      continue;
    }
    any = true;
    out.begin_object().field("kind", "stack").field("dim", 0).key("of").begin_array();
    for (int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
      const std::vector<std::string> names = names_of_expert(stored, expert);
      if (names.size() == 1) {
        out.value(names.front());
      } else {
        out.begin_object().field("kind", "concat").field("dim", 0).field("of", names).end_object();
      }
    }
    out.end_array().end_object();
  }
  return any ? out.end_object().text() : "";
}

std::string other_expert_folder(const std::string& name) {
  if (name.find(".experts.") == std::string::npos && !name.ends_with(".gate.weight")) return "";
  const std::string usual = replaced(name, kMixtral, kUsual);
  return usual.empty() ? replaced(name, kUsual, kMixtral) : usual;
}

}  // namespace tessera
