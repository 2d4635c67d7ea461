// SPDX-License-Identifier: MIT
#include "lib/model/lora_survey.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lib/core/joined.h"
#include "lib/core/nearest.h"
#include "lib/model/expert_names.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// "a.b.weight" -> "a.b"
std::string module_of(const std::string& stored) {
  const size_t dot = stored.rfind('.');
  return dot == std::string::npos ? "" : stored.substr(0, dot);
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

}  // namespace

LoraSurvey::LoraSurvey(const ModelSpec& model, const ModelSpec& without, const LoraRule& rule)
    : rule_(rule) {
  std::set<std::pair<std::string, std::string>> tied;
  for (const TiedParameter& tie : model.tied) {
    tied.emplace(tie.owner_block, tie.owner_parameter);
    tied.emplace(tie.alias_block, tie.alias_parameter);
  }
  std::map<std::string, size_t> number_of;
  for (const BlockBuilder& builder : model.blocks) {
    number_of.emplace(builder.name, blocks_.size());
    blocks_.push_back(builder.name);
  }
  for (const ParameterInfo& parameter : parameters_of(model)) {
    const auto& [block, name] = std::pair(parameter.block, parameter.name);
    Item item{.block = number_of.at(block),
              .numel = parameter.numel(),
              .matrix = parameter.shape.size() >= 2,
              .adapter = is_adapter(name),
              .trained = parameter.trained,
              .tied = tied.contains({block, name}),
              .experts = parameter.shape.size() == 3};
    item.stored = item.adapter ? model.stored_name(block, name).substr(kLoraPrefix.size())
                               : without.stored_name(block, name);
    item.module = module_of(item.adapter ? module_of(item.stored) : item.stored);
    item.whole = item.adapter && item.experts && is_of_all_experts(item.stored);
    items_.push_back(std::move(item));
  }
}

bool LoraSurvey::has_adapter(const std::string& module) const {
  return std::ranges::any_of(items_, [&](const Item& item) {
    return item.adapter && !item.whole && item.module == module;
  });
}

bool LoraSurvey::is_one_tensor(const Item& item) const {
  return std::ranges::any_of(
      items_, [&](const Item& other) { return other.stored == item.stored + "_bias"; });
}

void LoraSurvey::refuse_unknown(const char* what, const std::string& name, bool matrices) const {
  std::set<std::string> parts, modules;
  for (const Item& item : items_) {
    if (item.adapter || item.module.empty() || (matrices && !item.matrix)) continue;
    std::vector<std::string> own = layers_of_experts(item.stored);
    if (!own.empty() && (is_one_tensor(item) || !rule_.target_parameters.empty())) continue;
    if (own.empty()) own = {item.module};
    for (const std::string& module : own) {
      parts.insert(last_part(module));
      modules.insert(module);
    }
  }
  const std::vector<std::string> ends(parts.begin(), parts.end());
  const std::vector<std::string> all(modules.begin(), modules.end());
  const std::string nearest = nearest_hint(name, name.find('.') == std::string::npos ? ends : all);
  for (const Item& item : items_) {
    check(item.adapter || !item.experts || !LoraRule::matches(item.stored, name),
          ErrorCode::kInvalidArgument, "LoRA: ", what, " \"", name, "\" is the tensor ",
          item.stored,
          " of all experts and no layer; name it by target_parameters (--lora_target_parameters ",
          name, ")");
  }
  fail(ErrorCode::kInvalidArgument, "LoRA: ", what, " \"", name, "\" matches nothing",
       nearest.empty() ? "; the model has " + joined(ends) : nearest);
}

void LoraSurvey::check_target(const std::string& target) const {
  bool found = std::ranges::any_of(items_, [&](const Item& item) {  // of experts
    return item.adapter && !item.whole && LoraRule::matches(item.module, target);
  });
  for (const Item& item : items_) {
    if (item.adapter || !LoraRule::matches(item.module, target)) continue;
    found = true;
    if (rule_.saves(item.module) || has_adapter(item.module)) continue;
    check(!item.tied, ErrorCode::kInvalidArgument, "LoRA: target module \"", target, "\" matches ",
          item.module, ", whose weight is tied to another; adapters are for weights of their own");
    fail(ErrorCode::kInvalidArgument, "LoRA: target module \"", target, "\" matches ", item.module,
         ", to which block ", blocks_[item.block],
         " adds no adapter; adapters are for matrices of linear layers");
  }
  if (!found) refuse_unknown("target module", target, /*matrices=*/true);
}

void LoraSurvey::check_parameter(const std::string& target) const {
  std::set<std::string> tensors;
  for (const Item& item : items_) {
    if (item.adapter) continue;
    const std::string name = parameter_of_experts(item.stored);
    if (!layers_of_experts(name).empty() && item.experts) {
      const size_t folder = name.rfind(".mlp.");
      tensors.insert(folder == name.npos ? name : name.substr(folder + 1));
    }
    if (!LoraRule::matches(name, target)) continue;
    if (rule_.saves(name)) return;
    const bool adapted = std::ranges::any_of(items_, [&](const Item& other) {
      return other.whole && (other.module == module_of(name) ||
                             other.module == adapted_experts(name, /*down_too=*/true));
    });
    check(adapted, ErrorCode::kInvalidArgument, "LoRA: target parameter \"", target, "\" matches ",
          name, ", to which block ", blocks_[item.block],
          " adds no adapter; parameters with adapters are tensors of all experts of a layer of a "
          "built-in model; name layers by target_modules (--lora_target_modules)");
    return;
  }
  const std::vector<std::string> all(tensors.begin(), tensors.end());
  fail(
      ErrorCode::kInvalidArgument, "LoRA: target parameter \"", target, "\" matches nothing",
      all.empty() ? "; the model has no tensors of all experts" : "; the model has " + joined(all));
}

void LoraSurvey::check_targets() const {
  check(!rule_.target_modules.empty() || !rule_.target_parameters.empty(),
        ErrorCode::kInvalidArgument,
        "LoRA: the model has no default for target_modules; name them, or all-linear");
  for (const Item& item : items_) {
    const bool shared = item.tied && (has_adapter(item.module) || item.trained);
    check(!shared, ErrorCode::kInvalidArgument, "LoRA: ", item.stored,
          " is tied to another weight, so that it can neither have an adapter nor stand in "
          "modules_to_save");
  }
  if (!rule_.all_linear()) {
    for (const std::string& target : rule_.target_modules) check_target(target);
  }
  for (const std::string& target : rule_.target_parameters) check_parameter(target);
  for (const std::string& saved : rule_.modules_to_save) {
    LoraRule alone;
    alone.modules_to_save = {saved};
    if (!std::ranges::any_of(items_, [&](const Item& item) { return alone.saves(item.module); })) {
      refuse_unknown("module to save", saved, /*matrices=*/false);
    }
  }
  check(std::ranges::any_of(items_, [](const Item& item) { return item.adapter; }),
        ErrorCode::kInvalidArgument, "LoRA: the model has no linear layer that can have adapters");
}

// A token meets a part of a language model's experts, as a block's cost tells.
std::vector<double> LoraSurvey::used_shares(const std::vector<BlockCost>& costs) const {
  std::vector<double> experts(costs.size(), 0), others(costs.size(), 0), shares(costs.size(), 1);
  for (const Item& item : items_) {
    if (item.adapter || !item.matrix) continue;
    (item.experts ? experts : others)[item.block] += static_cast<double>(item.numel);
  }
  for (size_t block = 0; block < costs.size(); ++block) {
    if (experts[block] == 0) continue;
    shares[block] =
        std::clamp((costs[block].flops_per_token / 6 - others[block]) / experts[block], 0.0, 1.0);
  }
  return shares;
}

void LoraSurvey::adjust_costs(ModelSpec& model) const {
  const auto lowest = std::ranges::find_if(items_, &Item::trained);
  std::vector<BlockCost> costs;
  for (const BlockBuilder& builder : model.blocks) costs.push_back(builder.cost);
  const std::vector<double> used = used_shares(costs);
  double saved = 0;  // FLOPs per token
  for (const Item& item : items_) {
    if (costs[item.block].parameters == 0) continue;  // unknown
    BlockCost& cost = model.blocks[item.block].cost;
    const double numel = static_cast<double>(item.numel) * (item.experts ? used[item.block] : 1);
    if (item.adapter) {
      cost.parameters += item.numel;
      cost.flops_per_token += 6 * numel;
      saved -= 6 * numel;
    } else if (!item.trained) {
      const double less = (item.block < lowest->block ? 4 : 2) * numel;
      const bool product = item.matrix && costs[item.block].flops_per_token > 0;
      if (product) cost.flops_per_token -= less;
      if (product || !item.matrix) saved += less;  // embedding tables are looked up
    }
  }
  if (!model.flops_per_token) return;
  model.flops_per_token = [before = std::move(model.flops_per_token), saved](int64_t sequence) {
    return before(sequence) - saved;
  };
}

}  // namespace tessera
