// SPDX-License-Identifier: MIT
// Optimizers against plain fp64 loops of the published formulas, and the loss scaler.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/sgd.h"
#include "tests/support/scalar.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::scalar;

namespace {

struct Setup {
  at::Tensor parameter = at::randn({130});
  at::Tensor gradient = at::zeros({130});
  at::Tensor copy = at::zeros({130}, at::kBFloat16);
  std::vector<OptimizerRange> ranges(bool second_decays) {
    auto range = [&](int64_t begin, int64_t count, bool decay) {
      return OptimizerRange{parameter.narrow(0, begin, count), gradient.narrow(0, begin, count),
                            copy.narrow(0, begin, count), decay};
    };
    return {range(0, 64, true), range(64, 66, second_decays)};
  }
};

}  // namespace

TEST_CASE("AdamW follows the formula, decays only marked ranges and writes the 16-bit copy") {
  Setup setup;
  auto optimizer = make_adamw({.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1})(
      setup.ranges(false));
  at::Tensor p = setup.parameter.to(at::kDouble), m = at::zeros_like(p), v = at::zeros_like(p);
  const at::Tensor decay = at::cat({at::full({64}, 0.1), at::zeros({66})}).to(at::kDouble);
  for (int t = 1; t <= 5; ++t) {
    const double rate = 0.01 * t;
    setup.gradient.copy_(at::randn({130}));
    const at::Tensor g = setup.gradient.to(at::kDouble) * 0.5;
    optimizer->begin_step({scalar(rate), scalar(0.5), scalar(0)});
    optimizer->update(0, 2);
    p = p - rate * decay * p;
    m = 0.8 * m + 0.2 * g;
    v = 0.95 * v + 0.05 * g * g;
    const at::Tensor denominator = (v / (1 - std::pow(0.95, t))).sqrt() + 1e-6;
    p = p - rate * (m / (1 - std::pow(0.8, t))) / denominator;
    CHECK((setup.parameter - p).abs().max().item<double>() < 2e-6);
  }
  CHECK(setup.copy.equal(setup.parameter.to(at::kBFloat16)));
  CHECK(optimizer->step_count().item<double>() == 5);
  CHECK(optimizer->state_bytes() == 2 * 130 * 4);
}

TEST_CASE("ranges have rates, decays and betas of their own, whatever is updated together") {
  const AdamWConfig config{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};
  const UpdateRule rules[] = {{},
                              {.group = "a", .lr_factor = 3},
                              {.group = "b", .weight_decay = 0.5},
                              {.group = "c", .lr_factor = 0.5, .betas = std::pair(0.5, 0.9)},
                              {}};
  constexpr int64_t kEach = 30;
  const at::Tensor start = at::randn({5 * kEach}), gradient = at::zeros({5 * kEach});
  const at::Tensor together = start.clone(), alone = start.clone();
  std::vector<OptimizerRange> all;
  for (int64_t i = 0; i < 5; ++i) {
    all.push_back({.parameter = together.narrow(0, i * kEach, kEach),
                   .gradient = gradient.narrow(0, i * kEach, kEach),
                   .weight_decay = i != 4,
                   .rule = rules[i]});
  }
  const auto optimizer = make_adamw(config)(all);
  std::vector<std::unique_ptr<Optimizer>> plain;  // configured by the rules
  std::vector<double> factors;
  for (int64_t i = 0; i < 5; ++i) {
    const UpdateRule& rule = rules[i];
    const auto [beta1, beta2] = rule.betas.value_or(std::pair(config.beta1, config.beta2));
    plain.push_back(
        make_adamw({.beta1 = beta1,
                    .beta2 = beta2,
                    .weight_decay = rule.weight_decay.value_or(i == 4 ? 0 : config.weight_decay)})(
            {{.parameter = alone.narrow(0, i * kEach, kEach), .gradient = all[i].gradient}}));
    factors.push_back(rule.lr_factor);
  }
  for (int t = 1; t <= 5; ++t) {
    gradient.copy_(at::randn({5 * kEach}));
    optimizer->begin_step({scalar(0.01), scalar(0.5), {}});
    optimizer->update(0, 2);
    optimizer->update(2, 3);
    for (size_t i = 0; i < 5; ++i) {
      plain[i]->begin_step({scalar(0.01 * factors[i]), scalar(0.5), {}});
      plain[i]->update(0, 1);
    }
    CHECK((together - alone).abs().max().item<double>() < 1e-6);
  }
}

TEST_CASE("a range says which pieces of which parameters it holds") {
  const std::vector<ParameterRange> placed = {
      {"a.w", {5, 4}, 0, 20}, {"a.b", {7}, 64, 7}, {"c.w", {10, 10}, 128, 100}};
  OptimizerRange range{.parameter = at::zeros({150}), .placed = placed, .begin = 10};
  const std::vector<RangePiece> pieces = pieces_of(range);
  REQUIRE(pieces.size() == 3);
  const auto is = [](const RangePiece& piece, const char* name, int64_t offset, int64_t begin,
                     int64_t numel) {
    return piece.parameter.name == name && piece.offset == offset && piece.begin == begin &&
           piece.numel == numel;
  };
  CHECK(is(pieces[0], "a.w", 10, 0, 10));
  CHECK(is(pieces[1], "a.b", 0, 54, 7));
  CHECK(is(pieces[2], "c.w", 0, 118, 32));
  range.begin = 72;
  range.parameter = at::zeros({20});
  CHECK(pieces_of(range).empty());
}

TEST_CASE("betas of a group are refused by optimizers without them") {
  const OptimizerRange range{.parameter = at::zeros({0}),
                             .gradient = at::zeros({0}),
                             .rule = {.group = "slow", .betas = std::pair(0.5, 0.5)}};
  CHECK_THROWS_WITH(make_sgd({})({range}),
                    test::contains("group \"slow\" sets betas, which SGD does not have"));
}

TEST_CASE("a skipped step changes nothing, not even with NaN gradients") {
  for (const auto& factory :
       {make_adamw({.weight_decay = 0.1}), make_sgd({.momentum = 0.9, .weight_decay = 0.1})}) {
    Setup setup;
    auto optimizer = factory(setup.ranges(true));
    setup.gradient.fill_(0.3);
    optimizer->begin_step({scalar(0.1), scalar(1), scalar(0)});
    optimizer->update(0, 2);
    const at::Tensor before = setup.parameter.clone();
    const at::Tensor state_before = optimizer->state(0).front().second.clone();
    setup.gradient.fill_(std::nan(""));
    optimizer->begin_step({scalar(0.1), scalar(std::nan("")), scalar(1)});
    optimizer->update(0, 2);
    CHECK(setup.parameter.equal(before));
    CHECK(optimizer->state(0).front().second.equal(state_before));
    CHECK(optimizer->step_count().item<double>() == 1);
  }
}

TEST_CASE("steps are counted beyond 2^24, at which a count in fp32 stands still") {
  constexpr double kBefore = 1 << 24, kBeta = 1 - 1e-8;  // the correction still grows then
  for (const auto& factory : {make_adamw({.beta2 = kBeta}), make_sgd({})}) {
    Setup setup;
    auto optimizer = factory(setup.ranges(false));
    optimizer->step_count().fill_(kBefore);
    for (int i = 0; i < 3; ++i) optimizer->begin_step({scalar(0), scalar(1), scalar(0)});
    CHECK(optimizer->step_count().item<double>() == kBefore + 3);
  }
  for (const double steps : {kBefore, 4 * kBefore}) {
    const at::Tensor parameter = at::zeros({1}), gradient = at::ones({1});
    auto optimizer = make_adamw({.beta2 = kBeta, .epsilon = 1e-12})(
        {{.parameter = parameter, .gradient = gradient}});
    optimizer->step_count().fill_(steps - 1);
    optimizer->begin_step({scalar(1), {}, {}});
    optimizer->update(0, 1);
    const double root = std::sqrt((1 - kBeta) / (1 - std::pow(kBeta, steps)));
    CHECK(parameter.item<double>() == Approx(-0.1 / root).epsilon(1e-5));
  }
}

TEST_CASE("SGD with momentum, decay and nesterov follows the formula") {
  for (bool nesterov : {false, true}) {
    Setup setup;
    auto optimizer =
        make_sgd({.momentum = 0.9, .weight_decay = 0.01, .nesterov = nesterov})(setup.ranges(true));
    at::Tensor p = setup.parameter.to(at::kDouble), b;
    for (int t = 1; t <= 4; ++t) {
      setup.gradient.copy_(at::randn({130}));
      const at::Tensor g = setup.gradient.to(at::kDouble) + 0.01 * p;
      b = t == 1 ? g : 0.9 * b + g;
      p = p - 0.05 * (nesterov ? g + 0.9 * b : b);
      optimizer->begin_step({scalar(0.05), {}, {}});
      optimizer->update(0, 2);
      CHECK((setup.parameter - p).abs().max().item<double>() < 2e-6);
    }
  }
}

TEST_CASE("optimizers refuse impossible settings") {
  CHECK_THROWS_AS(make_adamw({.beta1 = 1.0}), Error);
  CHECK_THROWS_AS(make_adamw({.epsilon = 0}), Error);
  CHECK_THROWS_AS(make_sgd({.momentum = 1.5}), Error);
  CHECK_THROWS_AS(make_sgd({.nesterov = true}), Error);
}

TEST_CASE(
    "the loss scale halves on overflow, doubles after a run of finite steps, and stays in range") {
  LossScaler scaler({.enabled = true, .initial_scale = 8, .growth_interval = 3, .min_scale = 2},
                    at::kCPU);
  const void* address = scaler.scale().data_ptr();
  auto after = [&](double found_inf) {
    scaler.update(scalar(found_inf));
    return scaler.scale().item<double>();
  };
  CHECK(after(0) == 8);
  CHECK(after(0) == 8);
  CHECK(after(0) == 16);
  CHECK(after(1) == 8);
  CHECK(after(0) == 8);
  CHECK(after(0) == 8);
  CHECK(after(1) == 4);  // the run of finite steps was interrupted
  CHECK(after(1) == 2);
  CHECK(after(1) == 2);
  CHECK(scaler.scale().data_ptr() == address);
  LossScaler off({}, at::kCPU);
  off.update(scalar(1));
  CHECK(off.scale().item<double>() == 1);
}

TEST_CASE("the loss scale grows to its bound, where its square and inverse are normal in fp32") {
  LossScaler scaler({.enabled = true, .initial_scale = 0x1p62, .growth_interval = 1}, at::kCPU);
  for (int step = 0; step < 3; ++step) {
    scaler.update(scalar(0));
    CHECK(scaler.scale().item<double>() == kLargestLossScale);
  }
  const at::Tensor square = scaler.scale() * scaler.scale();
  CHECK(std::isnormal(square.item<float>()));
  CHECK(std::isnormal(square.reciprocal().item<float>()));
  CHECK_FALSE((square * 4).isfinite().item<bool>());  // at the next power of two
  scaler.update(scalar(1));
  CHECK(scaler.scale().item<double>() == 0x1p62);

  LossScaler own({.enabled = true, .initial_scale = 512, .growth_interval = 1, .max_scale = 1000},
                 at::kCPU);
  own.update(scalar(0));
  CHECK(own.scale().item<double>() == 1000);

  for (const LossScalerConfig& wrong :
       {LossScalerConfig{.initial_scale = 2, .max_scale = 1},
        LossScalerConfig{.initial_scale = 0.5}, LossScalerConfig{.max_scale = 0x1p64},
        LossScalerConfig{.max_scale = std::numeric_limits<double>::quiet_NaN()}}) {
    CHECK_THROWS_AS(LossScaler(wrong, at::kCPU), Error);
  }
}
