// SPDX-License-Identifier: MIT
#include "lib/run/update_rules.h"

#include <algorithm>

#include "lib/core/nearest.h"
#include "lib/settings/lists.h"
#include "lib/settings/require.h"
#include "tessera/model/parameter_groups.h"

namespace tessera::programs {
namespace {

// named() for names as in checkpoints, which users know.
ParameterPredicate stored(const ModelSpec& model, const std::string& part) {
  return [name_of = model.checkpoint_name, is = named(part)](
             const std::string& block, const std::string& parameter, c10::IntArrayRef shape) {
    return name_of ? is(name_of(block, parameter), "", shape) : is(block, parameter, shape);
  };
}

std::string nearest_word(const ModelSpec& model, const std::string& part) {
  std::vector<std::string> words;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    const std::string name = model.stored_name(parameter.block, parameter.name);
    for (const std::string& word : items_of(name, '.')) words.push_back(word);
  }
  return nearest_hint(part, words);
}

void require_found(const ModelSpec& model, const char* flag, const std::string& part) {
  const auto matches = stored(model, part);
  const bool found = std::ranges::any_of(parameters_of(model), [&](const ParameterInfo& p) {
    return matches(p.block, p.name, p.shape);
  });
  require(found, flag, ": no parameter of ", model.name, " has \"", part,
          "\" as a part of its name", found ? "" : nearest_word(model, part));
}

ModelSpec without_decay(ModelSpec model, const std::vector<std::string>& parts) {
  std::vector<ParameterPredicate> left_alone;
  for (const std::string& part : parts) {
    require_found(model, "--no_decay_names", part);
    left_alone.push_back(stored(model, part));
  }
  return with_decay(
      std::move(model),
      [left_alone](const std::string& block, const std::string& parameter, c10::IntArrayRef shape) {
        return std::ranges::none_of(left_alone,
                                    [&](const auto& one) { return one(block, parameter, shape); });
      });
}

ParameterGroup group_of_rate(const ModelSpec& model, const std::string& item) {
  const size_t equals = item.rfind('=');
  require(equals != std::string::npos && equals > 0, "--lr_groups: \"", item,
          "\" is not NAME=FACTOR, as lm_head=10");
  const std::string part = item.substr(0, equals), number = item.substr(equals + 1);
  ParameterGroup group{.name = part, .matches = stored(model, part)};
  require(set_text(FieldRef(&group.lr_factor), number), "--lr_groups: \"", number, "\" of ", part,
          " is not a number");
  require_found(model, "--lr_groups", part);
  return group;
}

}  // namespace

void add_update_rules(ModelSpec& model, const TrainingOptions& options) {
  if (options.no_decay_names == "none") {
    model = with_decay(std::move(model), DecayRule::kAll);
  } else if (!options.no_decay_names.empty()) {
    model = without_decay(std::move(model), items_of(options.no_decay_names));
  }
  std::vector<ParameterGroup> groups;
  for (const std::string& item : items_of(options.lr_groups)) {
    groups.push_back(group_of_rate(model, item));
  }
  if (!groups.empty()) model = with_groups(std::move(model), std::move(groups));
}

}  // namespace tessera::programs
