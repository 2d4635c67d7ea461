// SPDX-License-Identifier: MIT
#include "lib/testing/oracle.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <iterator>

#include "lib/testing/fuzz_tolerances.h"
#include "tessera/core/error.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera::testing {
namespace {

// Of fp32 in one step of a moment: the gradient's scale and decay, betas, products and sums, each
// relative to the terms taken positive; and what underflows.
constexpr double kAverageRoundings = 8, kSquareRoundings = 16, kLost = 0x1p-126;

}  // namespace

at::Tensor OracleGradient::sum() const { return parts.sum({0, 1, 2}); }

Oracle::Oracle(const ModelSpec& model, const OracleOptions& options) : options_(options) {
  std::map<std::string, std::string> owner_of;
  for (const TiedParameter& tie : model.tied) {
    owner_of[tie.alias_block + "." + tie.alias_parameter] =
        tie.owner_block + "." + tie.owner_parameter;
  }
  std::vector<at::Tensor> values;
  std::vector<std::array<double, 4>> rules;  // by place: decay, factor of the rate, betas
  int64_t offset = 0;
  std::map<std::string, std::vector<at::Tensor>> handles;  // by owner
  for (const BlockBuilder& builder : model.blocks) {
    blocks_.push_back(builder.build({.seed = options.seed}));
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
      place_of_[name] = places_.size();
      const bool matrix = options.optimizer == "muon" && value.dim() == 2 &&
                          hidden_matrices()(builder.name, parameter.name, value.sizes());
      places_.push_back({name, value.sizes().vec(), offset, value.numel(), parameter.weight_decay,
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
  for (const auto& [owner, of_owner] : handles) {
    check(place_of_.contains(owner) || frozen_.contains(owner), ErrorCode::kInvalidArgument,
          "oracle: tied parameter ", owner, " does not exist");
    uses_ = std::max(uses_, of_owner.size());
    for (size_t i = 0; i < of_owner.size(); ++i) {
      at::Tensor handle = of_owner[i];
      handle.set_requires_grad(place_of_.contains(owner));
      used_.push_back({handle, owner, i});
    }
  }
  parameters_ = values.empty() ? at::zeros({0}, at::kDouble) : at::cat(values);
  at::Tensor* const numbers[] = {&decay_, &lr_factor_, &beta1_, &beta2_};
  for (size_t n = 0; n < std::size(numbers); ++n) {
    *numbers[n] = at::empty_like(parameters_);
    for (size_t i = 0; i < places_.size(); ++i) {
      numbers[n]->narrow(0, places_[i].offset, places_[i].numel).fill_(rules[i][n]);
    }
  }
  exp_avg_ = at::zeros_like(parameters_);
  exp_avg_sq_ = at::zeros_like(parameters_);
  exp_avg_size_ = at::zeros_like(parameters_);
}

at::Tensor Oracle::flat(const std::map<std::string, at::Tensor>& by_name) const {
  std::vector<at::Tensor> parts{at::zeros({0}, at::kDouble)};
  for (const Place& place : places_) {
    parts.push_back(by_name.at(place.name).to(at::kDouble).reshape({-1}));
  }
  return at::cat(parts);
}

std::map<std::string, at::Tensor> Oracle::by_name(const at::Tensor& flat) const {
  std::map<std::string, at::Tensor> result;
  for (const Place& place : places_) {
    result[place.name] =
        flat.narrow(0, place.offset, place.numel).reshape(place.shape).to(at::kFloat);
  }
  return result;
}

at::Tensor Oracle::value_of(const std::string& name, const OracleDtypes& dtypes) const {
  at::Tensor value;
  if (frozen_.contains(name)) {
    value = frozen_.at(name);
  } else {
    const Place& place = places_[place_of_.at(name)];
    value = parameters_.narrow(0, place.offset, place.numel).reshape(place.shape);
  }
  if (dtypes.moved > 0) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(dtypes.moved);
    const double ulp = 2 * unit_roundoff(dtypes.weights);
    value = value * (1 + ulp * (2 * at::rand(value.sizes(), generator, at::kDouble) - 1));
  }
  return value.to(at::kFloat).to(dtypes.weights).to(dtypes.compute, false, /*copy=*/true);
}

// What the last block returns; handles hold the values and, after backward, the gradients.
at::Tensor Oracle::run(const MicroBatch& given, const OracleDtypes& dtypes, bool training,
                       std::map<std::string, at::Tensor>* left) {
  MicroBatch batch = given;
  const BlockContext context{.seed = options_.seeds ? options_.seeds->of(given) : 0,
                             .training = training};
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
        if (!place_of_.contains(use.owner) || !gradient.defined()) continue;
        const Place& place = places_[place_of_.at(use.owner)];
        part[static_cast<int64_t>(use.number)]
            .narrow(0, place.offset, place.numel)
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

// size: the gradient's terms taken positive.
at::Tensor Oracle::adam(const at::Tensor& gradient, const at::Tensor& size,
                        const at::Tensor& rate) {
  const auto t = static_cast<double>(updates_);
  exp_avg_slack_ = kAverageRoundings * 0x1p-24 * (exp_avg_.abs() + size * (1 - beta1_)) + kLost;
  exp_avg_sq_slack_ =
      kSquareRoundings * 0x1p-24 * (exp_avg_sq_ + size.square() * (1 - beta2_)) + kLost;
  exp_avg_ = exp_avg_ * beta1_ + gradient * (1 - beta1_);
  exp_avg_size_ = exp_avg_size_ * beta1_ + size * (1 - beta1_);
  exp_avg_sq_ = exp_avg_sq_ * beta2_ + gradient.square() * (1 - beta2_);
  const at::Tensor deviation = (exp_avg_sq_ / (1 - beta2_.pow(t))).sqrt() + options_.adamw.epsilon;
  const at::Tensor step_size = rate / (1 - beta1_.pow(t));
  parameters_ = parameters_ - step_size * exp_avg_ / deviation;
  return step_size * exp_avg_size_ / deviation;
}

at::Tensor Oracle::lion(const at::Tensor& gradient, const at::Tensor& rate) {
  const at::Tensor direction = exp_avg_ * beta1_ + gradient * (1 - beta1_);
  const at::Tensor size = exp_avg_.abs() * beta1_ + gradient.abs() * (1 - beta1_);
  exp_avg_ = exp_avg_ * beta2_ + gradient * (1 - beta2_);
  parameters_ = parameters_ - rate * direction.sign();
  // The sign of what rounding leaves of a sum may be any.
  return rate * at::where(direction.abs() <= 0x1p-18 * size, 0x1p25, 1.0);
}

namespace {

// After torch.optim.Muon, torch/optim/_muon.py: five iterations in bf16.
at::Tensor orthogonal(const at::Tensor& x) {
  const bool upright = x.size(0) > x.size(1);
  at::Tensor y = x.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (upright) y = y.t();
  y.div_(y.norm().clamp_min(1e-7));
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gram = y.matmul(y.t());
    y = at::addmm(y, at::addmm(gram, gram, gram, -4.7750, 2.0315), y, 3.4445);
  }
  return upright ? y.t() : y;
}

}  // namespace

// AdamW's, but of matrices. Momentum is fp32, as gradients are shown, so that the iteration, which
// magnifies a rounding of its input by up to 3.4445^5, starts from the very bits of the strategy.
// Where it does not, what roundings of its input to bf16 do is measured (fuzz_tolerances.h, [Note:
// other cases]).
at::Tensor Oracle::muon(const at::Tensor& gradient, const at::Tensor& rate, bool exact) {
  const at::Tensor before = parameters_.clone();
  at::Tensor size = adam(gradient, gradient.abs(), rate);
  for (const Place& place : places_) {
    if (!place.matrix) continue;
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, place.offset, place.numel);
    };
    const at::Tensor whole = part(gradient).to(at::kFloat).view(place.shape);
    const auto [at, added] = momenta_.try_emplace(place.name, at::zeros_like(whole));
    at->second.lerp_(whole, 1 - kOracleMuonMomentum);
    const at::Tensor seen = whole.lerp(at->second, kOracleMuonMomentum);
    const at::Tensor direction = orthogonal(seen).to(at::kDouble).flatten();
    const double tall = double(place.shape[0]) / double(place.shape[1]);
    const at::Tensor factor = part(rate) * std::sqrt(std::max(1.0, tall));
    part(parameters_).copy_(part(before) - factor * direction);
    part(size).copy_((factor * direction).abs());
    if (exact) continue;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(updates_));
    double squares = 0;
    for (size_t k = 0; k < kSamples; ++k) {
      const at::Tensor moved = 2 * at::rand(seen.sizes(), generator) - 1;
      const at::Tensor sampled = orthogonal(seen * (1 + unit_roundoff(at::kBFloat16) * moved));
      squares += (sampled.to(at::kDouble).flatten() - direction).square().sum().item<double>();
    }
    part(size).add_(factor * (kNoise * std::sqrt(squares) / (kUpdateRoundings * 0x1p-24)));
  }
  return size;
}

at::Tensor Oracle::update(const at::Tensor& gradient, double learning_rate, bool exact) {
  const at::NoGradGuard no_grad;
  ++updates_;
  const std::string& optimizer = options_.optimizer;
  at::Tensor rate = learning_rate * lr_factor_;
  if (optimizer == "muon") {
    for (const Place& place : places_) {
      if (place.matrix) rate.narrow(0, place.offset, place.numel).mul_(kOracleMuonRate);
    }
    parameters_ = parameters_ * (1 - rate * decay_);
    return muon(gradient, rate, exact);
  }
  if (optimizer == "adamw" || optimizer == "lion") {
    parameters_ = parameters_ * (1 - rate * decay_);
    return optimizer == "lion" ? lion(gradient, rate) : adam(gradient, gradient.abs(), rate);
  }
  const at::Tensor decay = parameters_ * decay_, whole = gradient + decay;
  const at::Tensor size = gradient.abs() + decay.abs();
  if (optimizer == "adam") return adam(whole, size, rate);
  if (optimizer == "sgd") {
    exp_avg_ = exp_avg_ * kOracleMomentum + whole;
    exp_avg_size_ = exp_avg_size_ * kOracleMomentum + size;
    parameters_ = parameters_ - rate * exp_avg_;
    return rate * exp_avg_size_;
  }
  check(optimizer == "adagrad", ErrorCode::kInvalidArgument, "oracle: no optimizer ", optimizer);
  exp_avg_sq_ = exp_avg_sq_ + whole.square();
  const at::Tensor step_size = rate / (exp_avg_sq_.sqrt() + kOracleAdagradEpsilon);
  parameters_ = parameters_ - step_size * whole;
  return step_size * size;
}

bool Oracle::follows_moments() const {
  const bool has = options_.optimizer == "adamw" || options_.optimizer == "adam";
  return has && options_.adamw.moments != MomentsDtype::kFloat32;
}

Oracle::Moments Oracle::moments() const {
  return {exp_avg_.clone(), exp_avg_sq_.clone(), exp_avg_slack_, exp_avg_sq_slack_};
}

void Oracle::adopt_moments(const Moments& moments) {
  exp_avg_ = moments.exp_avg;
  exp_avg_sq_ = moments.exp_avg_sq;
  exp_avg_size_ = exp_avg_.abs();
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
