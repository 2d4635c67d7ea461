#include "lib/run/adapters.h"

#include <algorithm>

#include "lib/settings/lora.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr const char* kClassificationHead = "score";

// PEFT, too, writes the modules where all linear layers are meant.
std::vector<std::string> adapted_modules(const ModelSpec& model) {
  std::vector<std::string> modules;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!LoraRule::matches(parameter.name, kLoraA)) continue;
    const std::string name = model.stored_name(parameter.block, parameter.name);
    const size_t begin = kLoraPrefix.size(), behind = kLoraA.size() + 1;
    modules.push_back(name.substr(begin, name.size() - begin - behind));
  }
  return modules;
}

}  // namespace

std::unique_ptr<AdapterDirectory> add_saved_adapters(ModelSpec& model, const std::string& directory,
                                                     const TensorSource* base,
                                                     const std::string& task_type) {
  auto adapter = std::make_unique<AdapterDirectory>(directory, base);
  const std::string& theirs = adapter->config().task_type;
  check(theirs.empty() || theirs == task_type, ErrorCode::kDataLoss, directory,
        "/adapter_config.json: task_type is ", theirs, ", the run's model is for ", task_type);
  try {
    model = add_lora(std::move(model), adapter->config().rule);
  } catch (const Error& error) {
    fail(ErrorCode::kDataLoss, directory, ": the adapter is of another model; ", error.what());
  }
  adapter->check_fits(model);
  return adapter;
}

std::unique_ptr<RunAdapters> add_adapters(ModelSpec& model, const LoraOptions& options,
                                          const TensorSource* base, AdapterConfig config) {
  auto adapters = std::make_unique<RunAdapters>();
  if (!options.adapter.empty()) {
    adapters->directory = add_saved_adapters(model, options.adapter, base, config.task_type);
    config.rule = adapters->directory->config().rule;
  } else if (options.r > 0) {
    config.rule = lora_rule(options);
    auto& saved = config.rule.modules_to_save;
    if (config.task_type == "SEQ_CLS" && std::ranges::count(saved, kClassificationHead) == 0) {
      saved.emplace_back(kClassificationHead);
    }
    if (config.rule.target_modules.empty()) {
      config.rule.target_modules = model.default_lora_targets;
    }
    model = add_lora(std::move(model), config.rule);
  } else {
    return nullptr;
  }
  if (config.rule.all_linear()) config.rule.target_modules = adapted_modules(model);
  adapters->config = std::move(config);
  return adapters;
}

std::vector<StateTensor> state_of_run(Strategy& strategy, const TrainOptions& options) {
  std::vector<StateTensor> state = strategy.state();
  if (options.trains_adapters()) std::erase_if(state, &StateTensor::frozen);
  return state;
}

}  // namespace tessera::programs
