// SPDX-License-Identifier: MIT
#include "tessera/model/parameter_groups.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using NameInBlock = std::pair<std::string, std::string>;

void check_group(const ParameterGroup& group) {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::kInvalidArgument, "parameter group \"", group.name, "\" ", why...);
  };
  if (group.name.empty() || !group.matches) refuse("needs a name and a predicate");
  if (!std::isfinite(group.lr_factor) || group.lr_factor <= 0) {
    refuse("has a learning-rate factor of ", group.lr_factor,
           "; expected a number above 0 (see frozen)");
  }
  if (group.weight_decay && !(*group.weight_decay >= 0)) {
    refuse("has a weight decay of ", *group.weight_decay, "; it must not be negative");
  }
  if (group.betas && !(is_beta(group.betas->first) && is_beta(group.betas->second))) {
    refuse("has betas ", group.betas->first, ", ", group.betas->second,
           "; they must lie in [0, 1)");
  }
  if (group.frozen &&
      (group.lr_factor != 1 || group.weight_decay || group.betas || group.fp32_state)) {
    refuse("is frozen, so that nothing else of it has a meaning");
  }
}

// Name of the parameter's group from an earlier with_groups().
std::string group_before(const ModelSpec& model, const ParameterInfo& info) {
  const auto builder = std::ranges::find(model.blocks, info.block, &BlockBuilder::name);
  if (!builder->revise) return "";
  Parameter parameter{info.name, at::empty(info.shape, at::kMeta)};
  builder->revise(parameter);
  return parameter.rule.group;
}

// Group of every parameter in one; an alias has its owner's.
using Members = std::map<NameInBlock, const ParameterGroup*>;

Members members_of(const ModelSpec& model, const std::vector<ParameterGroup>& groups) {
  Members members;
  std::map<std::string, std::string> found;  // by group: one of its parameters, trained or not
  std::map<std::string, bool> trains;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    for (const ParameterGroup& group : groups) {
      if (!group.matches(parameter.block, parameter.name, parameter.shape)) continue;
      const std::string name = parameter.block + "." + parameter.name;
      found[group.name] = parameter.alias ? name + ", which is tied to another" : name;
      if (parameter.alias) continue;
      const auto [at, added] = members.try_emplace({parameter.block, parameter.name}, &group);
      const std::string before =
          added ? group_before(model, parameter) : std::string(at->second->name);
      check(before.empty(), ErrorCode::kInvalidArgument, "parameter groups \"", before, "\" and \"",
            group.name, "\" both match parameter ", name, "; a parameter is in one group at most");
      trains[group.name] = trains[group.name] || parameter.trained;
    }
  }
  for (const ParameterGroup& group : groups) {
    check(found.contains(group.name), ErrorCode::kInvalidArgument, "parameter group \"", group.name,
          "\" matches no parameter of model ", model.name);
    check(trains[group.name], ErrorCode::kInvalidArgument, "parameter group \"", group.name,
          "\" matches nothing that is trained on its own, only ", found[group.name]);
  }
  for (const TiedParameter& tie : model.tied) {
    const auto owner = members.find({tie.owner_block, tie.owner_parameter});
    if (owner == members.end()) continue;
    members[{tie.alias_block, tie.alias_parameter}] = owner->second;
  }
  return members;
}

std::vector<int64_t> whole_shape(const Parameter& parameter) {
  std::vector<int64_t> shape = parameter.tensor.sizes().vec();
  const TensorShard& shard = parameter.placement.shard;
  if (!shard.replicated()) shape[static_cast<size_t>(shard.dim)] = shard.full_size;
  return shape;
}

// Applies change after earlier revisions.
void add_revision(BlockBuilder& builder, std::function<void(Parameter&)> change) {
  builder.revise = [before = std::move(builder.revise),
                    change = std::move(change)](Parameter& parameter) {
    if (before) before(parameter);
    change(parameter);
  };
}

}  // namespace

ParameterPredicate named(const std::string& part) {
  return [words = concat(".", part, ".")](const std::string& block, const std::string& parameter,
                                          c10::IntArrayRef) {
    return concat(".", block, ".", parameter, ".").find(words) != std::string::npos;
  };
}

ModelSpec with_groups(ModelSpec model, std::vector<ParameterGroup> groups) {
  const auto kept = std::make_shared<const std::vector<ParameterGroup>>(std::move(groups));
  for (const ParameterGroup& group : *kept) {
    check_group(group);
    const auto same = [&](const ParameterGroup& other) { return other.name == group.name; };
    check(std::ranges::count_if(*kept, same) == 1, ErrorCode::kInvalidArgument,
          "there are two parameter groups named \"", group.name, "\"");
  }
  const auto members = std::make_shared<const Members>(members_of(model, *kept));
  model = freeze(std::move(model),
                 [kept, members](const std::string& block, const std::string& parameter) {
                   const auto found = members->find({block, parameter});
                   return found != members->end() && found->second->frozen;
                 });
  for (BlockBuilder& builder : model.blocks) {
    add_revision(builder, [kept, members, block = builder.name](Parameter& parameter) {
      const auto found = members->find({block, parameter.name});
      if (found == members->end()) return;
      const ParameterGroup& group = *found->second;
      parameter.rule = {group.name, group.lr_factor, group.weight_decay, group.betas};
      parameter.fp32_state = group.fp32_state.value_or(parameter.fp32_state);
    });
  }
  return model;
}

ModelSpec with_decay(ModelSpec model, ParameterPredicate decays) {
  for (BlockBuilder& builder : model.blocks) {
    add_revision(builder, [decays, block = builder.name](Parameter& parameter) {
      parameter.weight_decay = decays(block, parameter.name, whole_shape(parameter));
    });
  }
  return model;
}

ModelSpec with_decay(ModelSpec model, DecayRule rule) {
  if (rule == DecayRule::kMatrices) return model;
  return with_decay(std::move(model), [](const auto&...) { return true; });
}

}  // namespace tessera
