// SPDX-License-Identifier: MIT
#include "tessera/model/lora.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/core/hash.h"
#include "lib/model/lora_survey.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

constexpr std::string_view kWeight = "weight";

void check_rule(const LoraRule& rule) {
  check(rule.r >= 1, ErrorCode::kInvalidArgument, "LoRA: the rank r is ", rule.r,
        "; expected at least 1");
  check(std::isfinite(rule.alpha) && rule.alpha > 0, ErrorCode::kInvalidArgument, "LoRA: alpha is ",
        rule.alpha, "; expected a number above 0");
  check(rule.dropout >= 0 && rule.dropout < 1, ErrorCode::kInvalidArgument, "LoRA: dropout is ",
        rule.dropout, "; expected a number from 0 to below 1");
  check(rule.dropout == 0 || rule.target_parameters.empty(), ErrorCode::kInvalidArgument,
        "LoRA: dropout is ", rule.dropout,
        " with target_parameters; PEFT has none for adapters of parameters: leave it at 0 "
        "(--lora_dropout 0)");
  check(rule.all_linear() || std::ranges::count(rule.target_modules, "all-linear") == 0,
        ErrorCode::kInvalidArgument, "LoRA: all-linear stands alone, without other targets");
}

// Copies the rank's slice of the stored value.
void fill(const Parameter& parameter, const std::string& stored, const TensorSource& saved) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = parameter.tensor.sizes().vec();
  const Placement& placement = parameter.placement;
  if (placement.cut == nullptr) {
    parameter.tensor.copy_(saved.read(stored, shape));
    return;
  }
  const TensorShard& shard = placement.shard;
  shape[shard.dim] = shard.full_size;
  copy_part(saved.read(stored, shape), shard, placement.cut->rank(), parameter.tensor);
}

struct Adapters {
  std::shared_ptr<const LoraRule> rule;
  std::shared_ptr<const TensorSource> saved;
  std::function<std::string(const std::string& block, const std::string& parameter)> base_name;

  std::string stored_in_base(const std::string& block, const std::string& parameter) const {
    return base_name ? base_name(block, parameter) : block + "." + parameter;
  }
  bool trains(const std::string& block, const std::string& parameter) const {
    return is_adapter(parameter) || rule->saves(stored_in_base(block, parameter));
  }
  std::string stored_name(const std::string& block, const std::string& parameter) const {
    if (!trains(block, parameter)) return stored_in_base(block, parameter);
    if (!is_adapter(parameter)) return concat(kLoraPrefix, stored_in_base(block, parameter));
    const std::string_view matrix = parameter.ends_with(kLoraA) ? kLoraA : kLoraB;
    const std::string weight =
        parameter.substr(0, parameter.size() - matrix.size()).append(kWeight);
    return concat(kLoraPrefix, adapter_name(stored_in_base(block, weight), matrix));
  }
};

std::unique_ptr<Block> build_adapted(const BlockBuilder& builder, const Adapters& adapters,
                                     const BuildContext& context) {
  check(context.lora == nullptr, ErrorCode::kInvalidArgument,
        "LoRA: the model has adapters already; add them once");
  BuildContext with_rule = context;
  with_rule.lora = adapters.rule;
  auto block = builder.build(with_rule);
  for (const Parameter& parameter : block->parameters()) {
    if (!adapters.trains(builder.name, parameter.name)) {
      parameter.tensor.set_requires_grad(false);
    } else if (adapters.saved != nullptr && !parameter.tensor.is_meta()) {
      fill(parameter, adapters.stored_name(builder.name, parameter.name), *adapters.saved);
    }
  }
  return block;
}

}  // namespace

double LoraRule::scale() const {
  const auto rank = static_cast<double>(r);
  return alpha / (use_rslora ? std::sqrt(rank) : rank);
}

bool LoraRule::all_linear() const {
  return target_modules.size() == 1 && target_modules.front() == "all-linear";
}

bool LoraRule::matches(std::string_view module, std::string_view target) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

bool LoraRule::targets(std::string_view module) const {
  if (saves(module)) return false;
  return all_linear() || std::ranges::any_of(target_modules, [&](const std::string& target) {
           return matches(module, target);
         });
}

bool LoraRule::targets_parameter(std::string_view name) const {
  return !saves(name) && std::ranges::any_of(target_parameters, [&](const std::string& target) {
    return matches(name, target);
  });
}

bool LoraRule::saves(std::string_view name) const {
  for (size_t end = 0; end != std::string_view::npos;) {
    end = name.find('.', end + 1);
    const std::string_view module = name.substr(0, end);
    if (std::ranges::any_of(modules_to_save,
                            [&](const std::string& saved) { return module.ends_with(saved); })) {
      return true;
    }
  }
  return false;
}

bool is_adapter(std::string_view parameter) {
  return LoraRule::matches(parameter, kLoraA) || LoraRule::matches(parameter, kLoraB);
}

std::string adapter_name(const std::string& weight, std::string_view matrix) {
  check(LoraRule::matches(weight, kWeight), ErrorCode::kInternal, "adapter of \"", weight,
        "\", which is no weight of a module");
  return weight.substr(0, weight.size() - kWeight.size()).append(matrix);
}

LoraMatrices lora_matrices(const BuildContext& context, size_t block_index,
                           const std::string& module, int64_t out, int64_t in) {
  const LoraRule& rule = *context.lora;
  const std::vector<int64_t> a = {rule.r, in}, b = {out, rule.r};
  if (context.device.is_meta()) {
    const auto shape = at::dtype(at::kFloat).device(at::kMeta);
    return {at::empty(a, shape), at::empty(b, shape)};
  }
  const uint64_t seed =
      block_seed(context.seed, block_index) ^ xxh3_64(module.data(), module.size());
  const auto generator = at::detail::createCPUGenerator(seed);
  LoraMatrices drawn{at::empty(a, at::kFloat), at::zeros(b, at::kFloat)};
  if (rule.init == LoraInit::kGaussian) {
    drawn.a.normal_(0, 1.0 / static_cast<double>(rule.r), generator);
  } else {
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    drawn.a.uniform_(-bound, bound, generator);
  }
  return drawn;
}

ModelSpec add_lora(ModelSpec model, LoraRule given, std::shared_ptr<const TensorSource> saved) {
  if (given.target_modules.empty() && given.target_parameters.empty()) {
    given.target_modules = model.default_lora_targets;
  }
  check_rule(given);
  const ModelSpec without = model;
  const auto adapters = std::make_shared<const Adapters>(Adapters{
      std::make_shared<const LoraRule>(std::move(given)), std::move(saved), model.checkpoint_name});
  for (BlockBuilder& builder : model.blocks) {
    builder.build = [original = builder, adapters](const BuildContext& context) {
      return build_adapted(original, *adapters, context);
    };
  }
  model.checkpoint_name = [adapters](const std::string& block, const std::string& parameter) {
    return adapters->stored_name(block, parameter);
  };
  const LoraSurvey survey(model, without, *adapters->rule);
  survey.check_targets();
  survey.adjust_costs(model);
  return model;
}

}  // namespace tessera
