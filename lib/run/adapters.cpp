// SPDX-License-Identifier: MIT
#include "lib/run/adapters.h"

#include <algorithm>
#include <memory>

#include "lib/core/hash.h"
#include "lib/model/expert_names.h"
#include "lib/settings/lists.h"
#include "lib/settings/options.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// PEFT's names of classifiers' heads, which it always trains.
constexpr const char* kClassificationHeads[] = {"score", "classifier"};

std::string classification_head(const ModelSpec& model) {
  for (const ParameterInfo& parameter : parameters_of(model)) {
    const std::string name = model.stored_name(parameter.block, parameter.name);
    for (const char* head : kClassificationHeads) {
      LoraRule alone;
      alone.modules_to_save = {head};
      if (alone.saves(name)) return head;
    }
  }
  return kClassificationHeads[0];
}

// Module names instead of "all-linear", as PEFT also writes them; of experts, which all have
// adapters, the last part.
std::vector<std::string> adapted_modules(const ModelSpec& model) {
  std::vector<std::string> modules;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!LoraRule::matches(parameter.name, kLoraA)) continue;
    const std::string name = model.stored_name(parameter.block, parameter.name);
    if (is_of_all_experts(name)) continue;
    const size_t begin = kLoraPrefix.size(), behind = kLoraA.size() + 1;
    std::string module = name.substr(begin, name.size() - begin - behind);
    if (parameter.shape.size() == 3) module = module.substr(module.rfind('.') + 1);
    if (std::ranges::count(modules, module) == 0) modules.push_back(std::move(module));
  }
  return modules;
}

// The rule from the flags; ignores --adapter.
LoraRule lora_rule(const LoraOptions& options) {
  LoraRule rule;
  rule.r = options.r;
  rule.alpha = options.alpha;
  rule.dropout = options.dropout;
  rule.use_rslora = options.use_rslora;
  rule.init = options.init;
  rule.target_modules = items_of(options.target_modules);
  rule.target_parameters = items_of(options.target_parameters);
  rule.modules_to_save = items_of(options.modules_to_save);
  return rule;
}

}  // namespace

AdapterConfig add_saved_adapters(ModelSpec& model, const std::string& directory,
                                 const std::string& task_type) {
  const auto adapter = std::make_shared<const AdapterDirectory>(directory);
  const std::string& theirs = adapter->config().task_type;
  check(theirs.empty() || theirs == task_type, ErrorCode::kDataLoss, directory,
        "/adapter_config.json: task_type is ", theirs, ", the run's model is for ", task_type);
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    names.push_back(model.stored_name(parameter.block, parameter.name));
  }
  adapter->check_complete(names);
  try {
    adapter->check_fits(add_lora(model, adapter->config().rule));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDataLoss) throw;
    fail(ErrorCode::kDataLoss, directory, ": the adapter is of another model; ", error.what());
  }
  model = add_lora(std::move(model), adapter->config().rule, adapter);
  return adapter->config();
}

std::optional<AdapterConfig> add_adapters(ModelSpec& model, const LoraOptions& options,
                                          AdapterConfig base) {
  if (!options.adapter.empty()) {
    base.rule = add_saved_adapters(model, options.adapter, base.task_type).rule;
    return base;
  }
  if (options.r == 0) return std::nullopt;
  base.rule = lora_rule(options);
  std::vector<std::string>& saved = base.rule.modules_to_save;
  if (base.task_type == "SEQ_CLS") {
    const std::string head = classification_head(model);
    if (std::ranges::count(saved, head) == 0) saved.push_back(head);
  }
  std::vector<std::string>& targets = base.rule.target_modules;
  if (targets.empty() && base.rule.target_parameters.empty()) targets = model.default_lora_targets;
  model = add_lora(std::move(model), base.rule);
  if (base.rule.all_linear()) targets = adapted_modules(model);
  return base;
}

std::string trained_names(const ModelSpec& model) {
  JsonWriter names;
  names.begin_object();
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!parameter.trained || parameter.alias) continue;
    names.field(parameter.block + "." + parameter.name,
                model.stored_name(parameter.block, parameter.name));
  }
  return names.end_object().text();
}

std::string saved_adapters_hash(const std::string& directory) {
  if (directory.empty()) return "";
  return concat(hash_file(directory + "/adapter_config.json").hex(), " ",
                hash_file(directory + "/adapter_model.safetensors").hex());
}

std::vector<StateTensor> state_of_run(Strategy& strategy, const TrainOptions& options) {
  std::vector<StateTensor> state = strategy.state();
  if (options.trains_adapters()) std::erase_if(state, &StateTensor::frozen);
  return state;
}

}  // namespace tessera::programs
