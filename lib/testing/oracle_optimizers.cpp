// SPDX-License-Identifier: MIT
// The oracle's optimizers, a row each.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "lib/testing/fuzz_tolerances.h"
#include "lib/testing/oracle.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

// fp32 roundings in one step of a moment: the gradient's scale and decay, betas, products and sums,
// each relative to the terms taken positive; and the bound below which values underflow.
constexpr double kAverageRoundings = 8, kSquareRoundings = 16, kLost = 0x1p-126;

}  // namespace

struct Oracle::Change {
  at::Tensor gradient, size;  // size: the gradient's terms taken positive
  at::Tensor rate;            // of every element
  bool exact = true;          // the gradient has the very bits that the strategy's optimizer sees
};

struct Oracle::Rule {
  const char* name;
  int draws;       // of all that the fuzzer makes
  bool decoupled;  // the decay shrinks the parameter; else it joins the gradient
  // Changes the parameters; returns the size of what rounding acts on.
  at::Tensor (*update)(Oracle& o, const Change& c);
  bool moments = false;   // averages of the gradient and its square, which may have fewer bits
  bool matrices = false;  // of hidden matrices
};

const std::vector<Oracle::Rule>& Oracle::rules() {
  static const auto adam = [](Oracle& o, const Change& c) { return o.adam(c); };
  static const std::vector<Rule> all = {
      {.name = "adamw", .draws = 3, .decoupled = true, .update = adam, .moments = true},
      {.name = "adam", .draws = 1, .decoupled = false, .update = adam, .moments = true},
      {.name = "sgd",
       .draws = 1,
       .decoupled = false,
       .update =
           [](Oracle& o, const Change& c) {
             o.exp_avg_ = o.exp_avg_ * kOracleMomentum + c.gradient;
             o.exp_avg_size_ = o.exp_avg_size_ * kOracleMomentum + c.size;
             o.parameters_ = o.parameters_ - c.rate * o.exp_avg_;
             return c.rate * o.exp_avg_size_;
           }},
      {.name = "lion",
       .draws = 1,
       .decoupled = true,
       .update =
           [](Oracle& o, const Change& c) {
             const at::Tensor direction = o.exp_avg_ * o.beta1_ + c.gradient * (1 - o.beta1_);
             const at::Tensor size = o.exp_avg_.abs() * o.beta1_ + c.size * (1 - o.beta1_);
             o.exp_avg_ = o.exp_avg_ * o.beta2_ + c.gradient * (1 - o.beta2_);
             o.parameters_ = o.parameters_ - c.rate * direction.sign();
             // The sign of what rounding leaves of a sum may be any.
             return c.rate * at::where(direction.abs() <= 0x1p-18 * size, 0x1p25, 1.0);
           }},
      {.name = "adagrad",
       .draws = 1,
       .decoupled = false,
       .update =
           [](Oracle& o, const Change& c) {
             // The sum keeps the roundings of earlier gradients, whose terms may have been larger.
             const at::Tensor earlier = o.exp_avg_size_, magnitude = c.gradient.abs();
             o.exp_avg_size_ = earlier + magnitude * c.size;
             o.exp_avg_sq_ = o.exp_avg_sq_ + c.gradient.square();
             const at::Tensor step_size = c.rate / (o.exp_avg_sq_.sqrt() + kOracleAdagradEpsilon);
             o.parameters_ = o.parameters_ - step_size * c.gradient;
             return step_size * (c.size + magnitude * (earlier / o.exp_avg_sq_).nan_to_num(0, 0));
           }},
      {.name = "muon",
       .draws = 2,
       .decoupled = true,
       .update = [](Oracle& o, const Change& c) { return o.muon(c); },
       .matrices = true},
  };
  return all;
}

std::vector<const char*> oracle_optimizers() {
  std::vector<const char*> names;
  for (const Oracle::Rule& rule : Oracle::rules()) {
    names.insert(names.end(), static_cast<size_t>(rule.draws), rule.name);
  }
  return names;
}

const Oracle::Rule& Oracle::find_rule(const std::string& name) {
  for (const Rule& rule : rules()) {
    if (name == rule.name) return rule;
  }
  fail(ErrorCode::kInvalidArgument, "oracle: no optimizer ", name);
}

at::Tensor Oracle::adam(const Change& c) {
  const auto t = static_cast<double>(updates_);
  exp_avg_slack_ = kAverageRoundings * 0x1p-24 * (exp_avg_.abs() + c.size * (1 - beta1_)) + kLost;
  exp_avg_sq_slack_ =
      kSquareRoundings * 0x1p-24 * (exp_avg_sq_ + c.size.square() * (1 - beta2_)) + kLost;
  exp_avg_ = exp_avg_ * beta1_ + c.gradient * (1 - beta1_);
  exp_avg_size_ = exp_avg_size_ * beta1_ + c.size * (1 - beta1_);
  exp_avg_sq_ = exp_avg_sq_ * beta2_ + c.gradient.square() * (1 - beta2_);
  const at::Tensor deviation = (exp_avg_sq_ / (1 - beta2_.pow(t))).sqrt() + options_.adamw.epsilon;
  const at::Tensor step_size = c.rate / (1 - beta1_.pow(t));
  parameters_ = parameters_ - step_size * exp_avg_ / deviation;
  return step_size * exp_avg_size_ / deviation;
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
at::Tensor Oracle::muon(const Change& c) {
  const at::Tensor before = parameters_.clone();
  at::Tensor size = adam(c);
  for (const FlatParameter& entry : entries_) {
    if (!entry.matrix) continue;
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, entry.offset, entry.numel);
    };
    const at::Tensor whole = part(c.gradient).to(at::kFloat).view(entry.shape);
    const auto [at, added] = momenta_.try_emplace(entry.name, at::zeros_like(whole));
    at->second.lerp_(whole, 1 - kOracleMuonMomentum);
    const at::Tensor seen = whole.lerp(at->second, kOracleMuonMomentum);
    const at::Tensor direction = orthogonal(seen).to(at::kDouble).flatten();
    const double tall = double(entry.shape[0]) / double(entry.shape[1]);
    const at::Tensor factor = part(c.rate) * std::sqrt(std::max(1.0, tall));
    part(parameters_).copy_(part(before) - factor * direction);
    part(size).copy_((factor * direction).abs());
    if (c.exact) continue;
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
  Change change{gradient, gradient.abs(), learning_rate * lr_factor_, exact};
  for (const FlatParameter& entry : entries_) {
    if (entry.matrix) change.rate.narrow(0, entry.offset, entry.numel).mul_(kOracleMuonRate);
  }
  if (rule_->decoupled) {
    parameters_ = parameters_ * (1 - change.rate * decay_);
  } else {
    const at::Tensor decay = parameters_ * decay_;
    change.gradient = gradient + decay;
    change.size = change.size + decay.abs();
  }
  return rule_->update(*this, change);
}

bool Oracle::updates_matrices() const { return rule_->matrices; }

bool Oracle::follows_moments() const {
  return rule_->moments && options_.adamw.moments != MomentsDtype::kFloat32;
}

Oracle::Moments Oracle::moments() const {
  return {exp_avg_.clone(), exp_avg_sq_.clone(), exp_avg_slack_, exp_avg_sq_slack_, updates_};
}

void Oracle::adopt_moments(const Moments& moments) {
  exp_avg_ = moments.exp_avg;
  exp_avg_sq_ = moments.exp_avg_sq;
  exp_avg_size_ = exp_avg_.abs();
}

}  // namespace tessera::testing
