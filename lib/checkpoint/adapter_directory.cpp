// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <set>

#include "lib/checkpoint/expert_files.h"
#include "lib/core/folder_file.h"
#include "lib/model/expert_names.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";

std::string weights_path(const std::string& directory) {
  const fs::path root(directory);
  check(fs::is_directory(root), ErrorCode::kDataLoss, directory, ": not a directory");
  check(fs::exists(root / kConfig), ErrorCode::kDataLoss, directory, ": has no ", kConfig,
        "; expected a directory that PEFT or a run with --lora_r has written");
  check(fs::exists(root / kWeights), ErrorCode::kDataLoss, directory, ": has no ", kWeights,
        fs::exists(root / "adapter_model.bin")
            ? "; pickled weights (adapter_model.bin) are never loaded because they can run code: "
              "save the adapter with safe_serialization=True"
            : "");
  return file_in(directory, kWeights);
}

// The module of an adapter's matrix by its name in the base; "" for other tensors. Of experts one
// for all.
std::string adapted_module(const std::string& name) {
  if (!is_adapter(name)) return "";
  const std::string path = name.substr(0, name.size() - kLoraA.size());
  return without_expert(path.ends_with('.') ? path.substr(0, path.size() - 1) : path);
}

// Removes the entries that match and returns them.
template <typename Predicate>
std::vector<std::string> take_out(std::vector<std::string>& list, const Predicate& predicate) {
  std::vector<std::string> taken;
  std::ranges::copy_if(list, std::back_inserter(taken), predicate);
  std::erase_if(list, predicate);
  return taken;
}

// True if an entry of modules_to_save includes the parameter.
bool saves(const std::string& entry, const std::string& parameter) {
  LoraRule alone;
  alone.modules_to_save = {entry};
  return alone.saves(parameter);
}

}  // namespace

AdapterDirectory::AdapterDirectory(const std::string& directory)
    : directory_(directory), file_(weights_path(directory)) {
  const Json json = Json::parse_file(file_in(directory, kConfig));
  config_ = AdapterConfig::from_json(json);
  for (const SafetensorsEntry& entry : file_.header().entries) {
    check(entry.name.starts_with(kLoraPrefix), ErrorCode::kDataLoss, file_.path(), ": byte ",
          entry.begin, ": tensor \"", entry.name, "\" does not begin with ", kLoraPrefix);
    check(at::isFloatingType(entry.dtype), ErrorCode::kDataLoss, file_.path(), ": byte ",
          entry.begin, ": tensor \"", entry.name, "\" is ", entry.dtype,
          "; quantised adapters are not supported");
    if (!is_adapter(entry.name)) continue;
    const int rank_dim = entry.name.ends_with(kLoraA) ? 0 : 1;
    const bool of_all = is_of_all_experts(entry.name);
    check(entry.shape.size() == 2, ErrorCode::kDataLoss, file_.path(), ": byte ", entry.begin,
          ": tensor \"", entry.name, "\" is no matrix");
    const int64_t rank = entry.shape[rank_dim], r = config_.rule.r;
    check(of_all ? rank % r == 0 : rank == r, ErrorCode::kDataLoss, file_.path(), ": byte ",
          entry.begin, ": tensor \"", entry.name, "\" has rank ", rank,
          of_all ? " for all experts, " : ", ", kConfig, " says r = ", r);
  }
  settle_targets(json);
}

// Replaces target patterns, and targets for some layers only, by the matching modules. Names in a
// list without a match are dropped, as by PEFT for modules that the base lacks (see
// check_complete()).
void AdapterDirectory::settle_targets(const Json& json) {
  std::set<std::string> modules;
  bool any = false;
  for (const SafetensorsEntry& entry : file_.header().entries) {
    if (!is_adapter(entry.name)) continue;
    any = true;
    if (is_of_all_experts(entry.name)) continue;  // of target_parameters
    modules.insert(adapted_module(entry.name.substr(kLoraPrefix.size())));
  }
  check(any, ErrorCode::kDataLoss, file_.path(), ": holds no adapter");
  LoraRule& rule = config_.rule;
  const bool some = json.find("exclude_modules") || json.find("layers_to_transform");
  absent_targets_ = take_out(rule.target_modules, [&](const std::string& target) {
    return std::ranges::none_of(modules, [&](const std::string& module) {
      return LoraRule::matches(module, without_expert(target));
    });
  });
  if (some) absent_targets_.clear();
  const bool covers = std::ranges::all_of(modules, [&](const std::string& module) {
    return std::ranges::any_of(rule.target_modules, [&](const std::string& target) {
      return LoraRule::matches(module, target);
    });
  });
  if (some || !covers) rule.target_modules.assign(modules.begin(), modules.end());
  absent_modules_ = take_out(rule.modules_to_save, [&](const std::string& saved) {
    return std::ranges::none_of(file_.header().entries, [&](const SafetensorsEntry& entry) {
      return !is_adapter(entry.name) && saves(saved, entry.name.substr(kLoraPrefix.size()));
    });
  });
}

void AdapterDirectory::check_complete(const std::vector<std::string>& base) const {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> modules;
  for (const std::string& name : base) {
    const std::vector<std::string> of_experts = layers_of_experts(name);
    modules.insert(modules.end(), of_experts.begin(), of_experts.end());
    if (!of_experts.empty()) continue;
    modules.push_back(name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size())
                                              : name);
  }
  for (const std::string& module : modules) {
    const auto refuse = [&](const char* list, const std::string& entry) {
      fail(ErrorCode::kDataLoss, file_.path(), ": no tensor of ", module, ", which \"", list,
           "\" of ", kConfig, " trains (\"", entry,
           "\"); the file is not complete: save the adapter once more");
    };
    for (const std::string& saved : absent_modules_) {
      if (saves(saved, module)) refuse("modules_to_save", saved);
    }
    if (config_.rule.saves(module)) continue;
    for (const std::string& target : absent_targets_) {
      if (LoraRule::matches(module, target)) refuse("target_modules", target);
    }
  }
}

bool AdapterDirectory::has(const std::string& name) const {
  return file_.find(name) != nullptr || file_.find(name_of_expert(name, 0)) != nullptr;
}

const SafetensorsEntry& AdapterDirectory::entry_of(const std::string& name,
                                                   at::IntArrayRef shape) const {
  const SafetensorsEntry* entry = file_.find(name);
  check(entry != nullptr, ErrorCode::kDataLoss, file_.path(), ": tensor \"", name,
        "\" is missing; the adapter is of another model");
  check(at::IntArrayRef(entry->shape) == shape, ErrorCode::kDataLoss, file_.path(), ": byte ",
        entry->begin, ": tensor \"", entry->name, "\" has shape ", at::IntArrayRef(entry->shape),
        ", the model has ", shape, "; the adapter is of another model");
  return *entry;
}

at::Tensor AdapterDirectory::read(const std::string& name, at::IntArrayRef shape) const {
  if (shape.size() == 3 && is_of_all_experts(name)) {
    const SafetensorsEntry& entry = entry_of(name, shape_in_adapter_file(name, shape));
    return from_adapter_file(name, file_.read(entry.name), shape[0]);
  }
  if (shape.size() != 3 || file_.find(name) != nullptr)
    return file_.read(entry_of(name, shape).name);
  std::vector<at::Tensor> experts;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    experts.push_back(file_.read(entry_of(name_of_expert(name, expert), shape.slice(1)).name));
  }
  return at::stack(experts);
}

void AdapterDirectory::check_fits(const ModelSpec& model) const {
  std::set<std::string> trained;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!parameter.trained) continue;
    const bool by_expert = is_adapter(parameter.name) && parameter.shape.size() == 3;
    const at::IntArrayRef shape = parameter.shape;
    for (const std::string& name : names_in_files(model, parameter)) {
      const std::vector<int64_t> stored = shape_in_adapter_file(name, shape);
      entry_of(name, by_expert && stored.size() == 3 ? shape.slice(1) : at::IntArrayRef(stored));
      trained.insert(name);
    }
  }
  for (const SafetensorsEntry& entry : file_.header().entries) {
    check(trained.contains(entry.name), ErrorCode::kDataLoss, file_.path(), ": byte ", entry.begin,
          ": tensor \"", entry.name, "\" belongs to nothing in model ", model.name,
          "; the adapter is of another model");
  }
}

HuggingFaceWriterOptions adapter_writer_options(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!parameter.trained) continue;
    for (std::string& name : names_in_files(model, parameter)) names.push_back(std::move(name));
  }
  return adapter_writer_options(names);
}

HuggingFaceWriterOptions adapter_writer_options(const std::vector<std::string>& names) {
  constexpr int64_t kEntry = 192;  // upper bound for a tensor's dtype, shape and bytes
  int64_t header = 1024;
  for (const std::string& name : names) header += kEntry + static_cast<int64_t>(name.size());
  return {.dtype = at::kFloat,
          .max_shard_bytes = std::numeric_limits<int64_t>::max(),
          .weights = kWeights,
          .header_bytes = header};
}

}  // namespace tessera
