// SPDX-License-Identifier: MIT
#include "lib/checkpoint/expert_files.h"

#include <ATen/ATen.h>

#include <set>
#include <string_view>

#include "lib/model/expert_names.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr std::string_view kMixtral = ".block_sparse_moe.", kUsual = ".mlp.";

std::string replaced(const std::string& name, std::string_view from, std::string_view to) {
  const size_t place = name.find(from);
  if (place == std::string::npos) return "";
  return std::string(name).replace(place, from.size(), to);
}

}  // namespace

std::vector<std::string> names_of_expert(const std::string& all_experts, int64_t expert) {
  std::vector<std::string> names = layers_of_experts(all_experts);
  for (std::string& name : names) name = name_of_expert(name, expert) + ".weight";
  return names;
}

at::Tensor in_adapter_file(const std::string& stored, const at::Tensor& value) {
  if (value.dim() != 3 || !is_of_all_experts(stored)) return value;
  return (stored.ends_with(kLoraA) ? value : value.permute({1, 2, 0}))
      .reshape(shape_in_adapter_file(stored, value.sizes()));
}

std::vector<int64_t> shape_in_adapter_file(const std::string& stored, at::IntArrayRef shape) {
  if (shape.size() != 3 || !is_of_all_experts(stored)) return shape.vec();
  return stored.ends_with(kLoraA) ? std::vector<int64_t>{shape[0] * shape[1], shape[2]}
                                  : std::vector<int64_t>{shape[1], shape[2] * shape[0]};
}

at::Tensor from_adapter_file(const std::string& stored, const at::Tensor& matrix, int64_t experts) {
  return stored.ends_with(kLoraA)
             ? matrix.view({experts, -1, matrix.size(1)})
             : matrix.view({matrix.size(0), -1, experts}).permute({2, 0, 1}).contiguous();
}

std::vector<std::string> names_in_files(const ModelSpec& model, const ParameterInfo& parameter) {
  const std::string stored = model.stored_name(parameter.block, parameter.name);
  const bool adapter = is_adapter(parameter.name);
  // PEFT's modules_to_save keep the names of version 5.
  const bool of_experts =
      adapter ? name_of_expert(stored, 0) != stored && !is_of_all_experts(stored)
              : !stored.starts_with(kLoraPrefix) && !layers_of_experts(stored).empty();
  if (parameter.shape.size() != 3 || !of_experts) return {stored};
  std::vector<std::string> names;
  for (int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
    if (adapter) {
      names.push_back(name_of_expert(stored, expert));
      continue;
    }
    for (std::string& name : names_of_expert(stored, expert)) names.push_back(std::move(name));
  }
  return names;
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
    const std::vector<std::string> names = names_in_files(model, parameter);
    out.key(parameter.block + "." + parameter.name);
    // Experts with biases (gpt-oss) are one tensor in files, too.
    const bool biased = known.contains(parameter.block + "." + parameter.name + "_bias");
    const std::string stored = model.stored_name(parameter.block, parameter.name);
    if (biased || names.front() == stored) {
      out.value(stored);
      continue;
    }
    any = true;
    const size_t of_expert = names.size() / static_cast<size_t>(parameter.shape[0]);
    out.begin_object().field("kind", "stack").field("dim", 0).key("of").begin_array();
    for (size_t first = 0; first < names.size(); first += of_expert) {
      if (of_expert == 1) {
        out.value(names[first]);
        continue;
      }
      out.begin_object().field("kind", "concat").field("dim", 0).key("of").begin_array();
      for (size_t i = 0; i < of_expert; ++i) out.value(names[first + i]);
      out.end_array().end_object();
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
