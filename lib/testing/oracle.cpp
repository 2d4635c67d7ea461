// SPDX-License-Identifier: MIT
#include "lib/testing/oracle.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "lib/model/linear_weights.h"
#include "lib/testing/fuzz_tolerances.h"
#include "tessera/core/error.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera::testing {

at::Tensor OracleGradient::sum() const { return parts.sum({0, 1, 2}); }

namespace {

// x (fp64) as multiples of a power of two that brings `largest` to at most 448, in numbers with
// four binary digits, of which the smallest is 2^-9.
at::Tensor in_8_bits(const at::Tensor& x, double largest) {
  const double scale = std::exp2(std::max(std::ceil(std::log2(largest / 448)), -24.0));
  const at::Tensor exponent =
      std::get<1>(at::frexp(x / scale)).sub(1).clamp_min(-6).to(at::kDouble);
  const at::Tensor step = at::exp2(exponent - 3) * scale;
  return at::round(x / step) * step;
}

}  // namespace

// The weights of a product have one scale.
void Oracle::round_frozen() {
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (std::vector<std::string> names : linear_weights_of(*blocks_[b])) {
      for (std::string& name : names) name = names_[b] + "." + name;
      const auto is_frozen = [&](const std::string& name) { return frozen_.contains(name); };
      if (!std::ranges::all_of(names, is_frozen)) continue;
      double largest = 0;
      for (const std::string& name : names) {
        largest = std::max(largest, frozen_.at(name).abs().max().item<double>());
      }
      for (const std::string& name : names) frozen_[name] = in_8_bits(frozen_.at(name), largest);
    }
  }
}

Oracle::Oracle(const ModelSpec& model, const OracleOptions& options)
    : options_(options), rule_(&find_rule(options.optimizer)) {
  std::map<std::string, std::string> owner_of;
  for (const TiedParameter& tie : model.tied) {
    owner_of[tie.alias_block + "." + tie.alias_parameter] =
        tie.owner_block + "." + tie.owner_parameter;
  }
  std::vector<at::Tensor> values;
  // By index in entries(): decay, learning rate factor, betas.
  std::vector<std::array<double, 4>> rules;
  int64_t offset = 0;
  std::map<std::string, std::vector<at::Tensor>> handles;  // by owner
  for (const BlockBuilder& builder : model.blocks) {
    blocks_.push_back(builder.build({.seed = options.seed}));
    names_.push_back(builder.name);
    for (const Buffer& buffer : blocks_.back()->buffers()) {
      if (buffer.data_rank < 0) continue;
      check(options.forward != nullptr && buffer.data_rank == 0, ErrorCode::kInvalidArgument,
            "oracle: running statistics are those of rank 0, of a forward() that is given");
      statistics_[builder.name + "." + buffer.name] = buffer.tensor.clone();
    }
    for (const Parameter& parameter : builder.parameters_of(*blocks_.back())) {
      const std::string name = builder.name + "." + parameter.name;
      const bool alias = owner_of.contains(name);
      handles[alias ? owner_of.at(name) : name].push_back(parameter.tensor);
      if (alias) continue;
      const at::Tensor value = parameter.tensor.detach().to(at::kDouble).clone();
      if (!parameter.tensor.requires_grad()) {
        frozen_[name] = value;
        continue;
      }
      entry_of_[name] = entries_.size();
      const bool matrix = updates_matrices() && value.dim() == 2 &&
                          hidden_matrices()(builder.name, parameter.name, value.sizes());
      entries_.push_back({name, value.sizes().vec(), offset, value.numel(), parameter.weight_decay,
                          matrix, parameter.fp32_state});
      offset += value.numel();
      values.push_back(value.reshape({-1}));
      const UpdateRule& rule = parameter.rule;
      const double decay = parameter.weight_decay ? options.adamw.weight_decay : 0.0;
      const auto [beta1, beta2] =
          rule.betas.value_or(std::pair(options.adamw.beta1, options.adamw.beta2));
      rules.push_back({rule.weight_decay.value_or(decay), rule.lr_factor, beta1, beta2});
    }
  }
  if (options.frozen == FrozenDtype::kFp8) round_frozen();
  for (const auto& [owner, of_owner] : handles) {
    check(entry_of_.contains(owner) || frozen_.contains(owner), ErrorCode::kInvalidArgument,
          "oracle: tied parameter ", owner, " does not exist");
    uses_ = std::max(uses_, of_owner.size());
    for (size_t i = 0; i < of_owner.size(); ++i) {
      at::Tensor handle = of_owner[i];
      handle.set_requires_grad(entry_of_.contains(owner));
      used_.push_back({handle, owner, i});
    }
  }
  parameters_ = values.empty() ? at::zeros({0}, at::kDouble) : at::cat(values);
  at::Tensor* const numbers[] = {&decay_, &lr_factor_, &beta1_, &beta2_};
  for (size_t n = 0; n < std::size(numbers); ++n) {
    *numbers[n] = at::empty_like(parameters_);
    for (size_t i = 0; i < entries_.size(); ++i) {
      numbers[n]->narrow(0, entries_[i].offset, entries_[i].numel).fill_(rules[i][n]);
    }
  }
  exp_avg_ = at::zeros_like(parameters_);
  exp_avg_sq_ = at::zeros_like(parameters_);
  exp_avg_size_ = at::zeros_like(parameters_);
}

at::Tensor Oracle::flat(const std::map<std::string, at::Tensor>& by_name) const {
  std::vector<at::Tensor> parts{at::zeros({0}, at::kDouble)};
  for (const FlatParameter& entry : entries_) {
    parts.push_back(by_name.at(entry.name).to(at::kDouble).reshape({-1}));
  }
  return at::cat(parts);
}

std::map<std::string, at::Tensor> Oracle::by_name(const at::Tensor& flat) const {
  std::map<std::string, at::Tensor> result;
  for (const FlatParameter& entry : entries_) {
    result[entry.name] =
        flat.narrow(0, entry.offset, entry.numel).reshape(entry.shape).to(at::kFloat);
  }
  return result;
}

at::Tensor Oracle::value_of(const std::string& name, const OracleDtypes& dtypes) const {
  at::Tensor value;
  if (frozen_.contains(name)) {
    value = frozen_.at(name);
  } else {
    const FlatParameter& entry = entries_[entry_of_.at(name)];
    value = parameters_.narrow(0, entry.offset, entry.numel).reshape(entry.shape);
  }
  if (dtypes.moved > 0) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(dtypes.moved);
    const double ulp = 2 * unit_roundoff(dtypes.weights);
    value = value * (1 + ulp * (2 * at::rand(value.sizes(), generator, at::kDouble) - 1));
  }
  return value.to(at::kFloat).to(dtypes.weights).to(dtypes.compute, false, /*copy=*/true);
}

// Result of the last block. handles hold the values and, after backward, the gradients.
at::Tensor Oracle::run(const MicroBatch& given, const OracleDtypes& dtypes, bool training,
                       std::map<std::string, at::Tensor>* left) {
  MicroBatch batch = given;
  const BlockContext context{.seed = options_.seeds ? options_.seeds->of(given) : 0,
                             .training = training,
                             .fp8 = training ? options_.fp8 : Fp8::kOff,
                             .fp8_layers = options_.fp8_layers};
  if (batch.input_ids.is_floating_point()) batch.input_ids = batch.input_ids.clone();
  std::map<std::string, at::Tensor> leaves;
  for (const Use& use : used_) {
    at::Tensor handle = use.handle;
    handle.mutable_grad().reset();
    handle.set_data(value_of(use.owner, dtypes));
    leaves[use.owner] = handle;
  }
  for (const auto& [name, value] : statistics_) {
    const auto dtype = value.is_floating_point() ? dtypes.compute : value.scalar_type();
    leaves[name] = value.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  if (options_.forward) {
    const at::Tensor output = options_.forward(leaves, batch, context);
    for (const auto& [name, value] : statistics_) {
      if (left != nullptr) (*left)[name] = leaves.at(name).to(value.scalar_type());
    }
    return output;
  }
  at::Tensor hidden;
  for (const auto& block : blocks_) hidden = block->forward(hidden, batch, context);
  return hidden;
}

double Oracle::count_targets(const GlobalBatch& batch) const {
  double targets = 0;
  for (const auto& of_rank : batch) {
    for (const MicroBatch& micro_batch : of_rank) {
      targets += micro_batch.labels.ne(kIgnoredLabel).sum().item<double>();
    }
  }
  return targets;
}

namespace {

void add_output(OracleLoss& to, const at::Tensor& output) {
  const at::Tensor sums = output.detach().reshape({-1}).to(at::kDouble);
  to.counters.resize(static_cast<size_t>(sums.numel() - 1));
  to.terms.push_back(sums[0].item<double>() / std::max(to.targets, 1.0));
  to.loss += to.terms.back();
  for (int64_t i = 1; i < sums.numel(); ++i) {
    to.counters[static_cast<size_t>(i - 1)] += sums[i].item<double>();
  }
}

}  // namespace

OracleGradient Oracle::gradient(const GlobalBatch& batch, double loss_scale,
                                const OracleDtypes& dtypes, double divisor) {
  const at::AutoGradMode gradients(true);
  OracleGradient result;
  result.targets = count_targets(batch);
  const double mean = std::max(result.targets, 1.0), divided = divisor > 0 ? divisor : mean;
  const at::Tensor seed =
      at::full({}, 1.0 / divided, at::kFloat) * at::full({}, loss_scale, at::kFloat);
  result.parts =
      at::zeros({static_cast<int64_t>(batch.size()), static_cast<int64_t>(batch.front().size()),
                 static_cast<int64_t>(uses_), parameters_.numel()},
                at::kDouble);
  for (size_t rank = 0; rank < batch.size(); ++rank) {
    for (size_t m = 0; m < batch[rank].size(); ++m) {
      const at::Tensor output = run(batch[rank][m], dtypes, /*training=*/true).reshape({-1});
      add_output(result, output);
      if (!output.requires_grad()) continue;
      const at::Tensor loss = output.select(0, 0);
      torch::autograd::backward({loss}, {seed.to(loss.scalar_type())});
      const at::Tensor part = result.parts[static_cast<int64_t>(rank)][static_cast<int64_t>(m)];
      for (const Use& use : used_) {
        const at::Tensor& gradient = use.handle.grad();
        if (!entry_of_.contains(use.owner) || !gradient.defined()) continue;
        const FlatParameter& entry = entries_[entry_of_.at(use.owner)];
        part[static_cast<int64_t>(use.number)]
            .narrow(0, entry.offset, entry.numel)
            .copy_(gradient.detach().reshape({-1}));
      }
    }
  }
  if (divided != mean) result.parts.mul_(divided / mean);
  return result;
}

void Oracle::advance_statistics(const std::vector<MicroBatch>& of_rank,
                                const OracleDtypes& dtypes) {
  const at::NoGradGuard no_grad;
  for (const MicroBatch& micro_batch : of_rank) {
    if (!statistics_.empty()) run(micro_batch, dtypes, /*training=*/true, &statistics_);
  }
}

OracleLoss Oracle::evaluate(const GlobalBatch& batch, const OracleDtypes& dtypes) {
  const at::NoGradGuard no_grad;
  OracleLoss result;
  result.targets = count_targets(batch);
  for (const auto& of_rank : batch) {
    for (const MicroBatch& micro_batch : of_rank) {
      add_output(result, run(micro_batch, dtypes, /*training=*/false));
    }
  }
  return result;
}

OracleReport Oracle::train(const GlobalBatch& batch, const OracleStep& step,
                           const OracleDtypes& dtypes) {
  check(!follows_moments(), ErrorCode::kInvalidArgument, "oracle: it cannot round moments itself");
  const OracleGradient gradient = this->gradient(batch, step.loss_scale, dtypes);
  OracleReport report{.loss = gradient.loss, .gradient = gradient.sum() / step.loss_scale};
  report.norm = report.gradient.norm().item<double>();
  if (step.max_norm > 0) report.clip = std::min(1.0, step.max_norm / (report.norm + 1e-6));
  report.skipped = step.skip || !std::isfinite(report.norm);
  if (!report.skipped) update(report.gradient * report.clip, step.learning_rate);
  return report;
}

}  // namespace tessera::testing
