#include "tessera/model/lora.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/core/hash.h"
#include "lib/model/lora_survey.h"
#include "tessera/core/error.h"

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
  check(rule.all_linear() || std::ranges::count(rule.target_modules, "all-linear") == 0,
        ErrorCode::kInvalidArgument, "LoRA: all-linear stands alone, without other targets");
}

BlockBuilder with_adapters(BlockBuilder builder, const std::shared_ptr<const LoraRule>& rule,
                           std::function<bool(const std::string& parameter)> trained) {
  builder.build = [build = std::move(builder.build), rule,
                   trained = std::move(trained)](const BuildContext& context) {
    check(context.lora == nullptr, ErrorCode::kInvalidArgument,
          "LoRA: the model has adapters already; add them once");
    BuildContext with_rule = context;
    with_rule.lora = rule;
    auto block = build(with_rule);
    for (const Parameter& parameter : block->parameters()) {
      if (!trained(parameter.name)) parameter.tensor.set_requires_grad(false);
    }
    return block;
  };
  return builder;
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
  const std::string stored = concat(kLoraPrefix, module, ".");
  const std::string name_a = concat(stored, kLoraA), name_b = concat(stored, kLoraB);
  if (context.source != nullptr && context.source->has(name_a)) {
    return {context.source->read(name_a, a).to(at::kFloat),
            context.source->read(name_b, b).to(at::kFloat)};
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

ModelSpec add_lora(ModelSpec model, LoraRule given) {
  if (given.target_modules.empty()) given.target_modules = model.default_lora_targets;
  check_rule(given);
  const auto rule = std::make_shared<const LoraRule>(std::move(given));
  const auto trained = [rule, name = model.checkpoint_name](const std::string& block,
                                                            const std::string& parameter) {
    return is_adapter(parameter) ||
           rule->saves(name ? name(block, parameter) : block + "." + parameter);
  };
  const ModelSpec without = model;
  for (BlockBuilder& builder : model.blocks) {
    builder = with_adapters(std::move(builder), rule,
                            [trained, block = builder.name](const std::string& parameter) {
                              return trained(block, parameter);
                            });
  }
  model.checkpoint_name = [trained, without = without.checkpoint_name](
                              const std::string& block, const std::string& parameter) {
    const auto stored = [&](const std::string& name) {
      return without ? without(block, name) : block + "." + name;
    };
    if (!trained(block, parameter)) return stored(parameter);
    if (!is_adapter(parameter)) return concat(kLoraPrefix, stored(parameter));
    const std::string_view matrix = parameter.ends_with(kLoraA) ? kLoraA : kLoraB;
    const std::string weight =
        parameter.substr(0, parameter.size() - matrix.size()).append(kWeight);
    return concat(kLoraPrefix, adapter_name(stored(weight), matrix));
  };
  const LoraSurvey survey(model, without, *rule);
  survey.check_targets();
  survey.adjust_costs(model);
  return model;
}

}  // namespace tessera
