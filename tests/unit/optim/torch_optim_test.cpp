// SPDX-License-Identifier: MIT
// Optimizers against LibTorch's own classes over 20 fp32 steps, and torch::optim's wrapped by this
// library's interface.
#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/core/error.h"
#include "tessera/optim/adagrad.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/from_torch.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/sgd.h"
#include "tests/support/scalar.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::scalar;
namespace optim = torch::optim;

namespace {

constexpr int kSteps = 20;
constexpr int64_t kNumel = 203, kCut = 70;
constexpr double kTorchRate = 0.01, kTorchDecay = 0.1;

// Steps of a torch class.
class Reference {
 public:
  template <typename T, typename Options>
  static at::Tensor of(const at::Tensor& start, const std::vector<at::Tensor>& gradients,
                       const Options& options) {
    at::Tensor parameter = start.clone();
    T optimizer(std::vector<at::Tensor>{parameter}, options);
    for (const at::Tensor& gradient : gradients) {
      parameter.mutable_grad() = gradient.clone();
      optimizer.step();
    }
    return parameter;
  }
};

// In two ranges, the second with its own memory, with scaled gradients and a skipped step in
// between.
at::Tensor ours(const OptimizerFactory& factory, const at::Tensor& start,
                const std::vector<at::Tensor>& gradients) {
  const at::Tensor parameter = start.clone(), gradient = at::zeros_like(start);
  const auto part = [](const at::Tensor& x, bool first) {
    return first ? x.narrow(0, 0, kCut) : x.narrow(0, kCut, kNumel - kCut);
  };
  const auto optimizer =
      factory({{.parameter = part(parameter, true), .gradient = part(gradient, true)}});
  ExternalRange second{{.parameter = part(parameter, false), .gradient = part(gradient, false)},
                       {}};
  for (size_t i = 0; i < optimizer->state_names().size(); ++i) {
    second.state.push_back(at::zeros({kNumel - kCut}));
  }
  const auto step = [&](const at::Tensor& values, double skip) {
    gradient.copy_(values * 4);
    optimizer->begin_step({scalar(kTorchRate), scalar(0.25), scalar(skip)});
    optimizer->update(0, 1);
    optimizer->update({&second, 1});
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (i == 5) step(at::full_like(start, std::numeric_limits<float>::quiet_NaN()), 1);
    step(gradients[i], 0);
  }
  CHECK(optimizer->step_count().item<double>() == static_cast<double>(gradients.size()));
  return parameter;
}

struct Inputs {
  at::Tensor start = at::randn({kNumel});
  std::vector<at::Tensor> gradients;
  Inputs() {
    for (int step = 0; step < kSteps; ++step) gradients.push_back(at::randn({kNumel}));
  }
};

void check_close(const at::Tensor& actual, const at::Tensor& expected) {
  CHECK((actual - expected).abs().max().item<double>() <
        1e-6 * std::max(1.0, expected.abs().max().item<double>()));
}

template <typename T, typename Options>
void check_beside(const OptimizerFactory& factory, const Options& options) {
  torch::manual_seed(11);
  const Inputs inputs;
  check_close(ours(factory, inputs.start, inputs.gradients),
              Reference::of<T>(inputs.start, inputs.gradients, options));
}

}  // namespace

TEST_CASE("AdamW and Adam with L2 are LibTorch's") {
  check_beside<optim::AdamW>(make_adamw({.weight_decay = kTorchDecay}),
                             optim::AdamWOptions(kTorchRate).weight_decay(kTorchDecay));
  check_beside<optim::Adam>(make_adamw({.weight_decay = kTorchDecay, .adam_w_mode = false}),
                            optim::AdamOptions(kTorchRate).weight_decay(kTorchDecay));
}

TEST_CASE("SGD and Adagrad are LibTorch's") {
  check_beside<optim::SGD>(make_sgd({.weight_decay = kTorchDecay}),
                           optim::SGDOptions(kTorchRate).weight_decay(kTorchDecay));
  for (bool nesterov : {false, true}) {
    check_beside<optim::SGD>(
        make_sgd({.momentum = 0.9, .weight_decay = kTorchDecay, .nesterov = nesterov}),
        optim::SGDOptions(kTorchRate).momentum(0.9).weight_decay(kTorchDecay).nesterov(nesterov));
  }
  check_beside<optim::Adagrad>(
      make_adagrad({.lr_decay = 0.1, .weight_decay = kTorchDecay}),
      optim::AdagradOptions(kTorchRate).lr_decay(0.1).weight_decay(kTorchDecay));
}

// The paper's program (Chen et al. 2023, algorithm 2), as in github.com/google/automl.
TEST_CASE("Lion is the paper's") {
  torch::manual_seed(12);
  const Inputs inputs;
  at::Tensor parameter = inputs.start.clone(), exp_avg = at::zeros_like(parameter);
  for (const at::Tensor& gradient : inputs.gradients) {
    parameter.mul_(1 - kTorchRate * kTorchDecay);
    parameter.add_(exp_avg.clone().mul_(0.9).add_(gradient, 1 - 0.9).sign_(), -kTorchRate);
    exp_avg.mul_(0.99).add_(gradient, 1 - 0.99);
  }
  check_close(ours(make_lion({.weight_decay = kTorchDecay}), inputs.start, inputs.gradients),
              parameter);
}

TEST_CASE("classes of torch::optim keep their numbers under this interface") {
  const auto rmsprop =
      optim::RMSpropOptions(kTorchRate).weight_decay(kTorchDecay).momentum(0.9).centered(true);
  check_beside<optim::RMSprop>(make_from_torch<optim::RMSprop>(rmsprop), rmsprop);
  const auto adamw = optim::AdamWOptions(kTorchRate).weight_decay(kTorchDecay).amsgrad(true);
  check_beside<optim::AdamW>(make_from_torch<optim::AdamW>(adamw), adamw);
  const auto adam = optim::AdamOptions(kTorchRate).weight_decay(kTorchDecay);
  check_beside<optim::Adam>(make_from_torch<optim::Adam>(adam), adam);
  const auto sgd = optim::SGDOptions(kTorchRate).momentum(0.9).weight_decay(kTorchDecay);
  check_beside<optim::SGD>(make_from_torch<optim::SGD>(sgd), sgd);
  const auto adagrad = optim::AdagradOptions(kTorchRate).lr_decay(0.1);
  check_beside<optim::Adagrad>(make_from_torch<optim::Adagrad>(adagrad), adagrad);

  const auto names = make_from_torch<optim::RMSprop>(rmsprop)({})->state_names();
  CHECK(names == std::vector<std::string>{"square_avg", "grad_avg", "momentum_buffer"});
  CHECK(make_from_torch<optim::SGD>(optim::SGDOptions(0.1))({})->state_names().empty());
}

TEST_CASE("ranges with rules reach a class of torch::optim") {
  const Inputs inputs;
  const at::Tensor p = inputs.start.clone();
  OptimizerRange range{.parameter = p, .gradient = inputs.gradients[0], .weight_decay = false};
  range.rule = {.group = "g", .lr_factor = 2, .betas = std::pair(0.5, 0.6)};
  const auto optimizer =
      make_from_torch<optim::AdamW>(optim::AdamWOptions(1).weight_decay(kTorchDecay))({range});
  optimizer->begin_step({scalar(kTorchRate), {}, {}});
  optimizer->update(0, 1);
  check_close(p, Reference::of<optim::AdamW>(
                     inputs.start, {inputs.gradients[0]},
                     optim::AdamWOptions(2 * kTorchRate).betas({0.5, 0.6}).weight_decay(0)));
  CHECK_THROWS_WITH(make_from_torch<optim::SGD>(optim::SGDOptions(1))({range}),
                    test::contains("group \"g\" sets betas, which torch::optim::SGD"));
}

namespace {

// Divides a gradient by its norm.
struct WholeState : optim::OptimizerCloneableParamState<WholeState> {};
struct WholeOptions : optim::OptimizerCloneableOptions<WholeOptions> {
  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
  double lr = 0.1;
};
class Whole : public optim::Optimizer {
 public:
  Whole(std::vector<at::Tensor> parameters, WholeOptions options)
      : Optimizer(std::move(parameters), std::make_unique<WholeOptions>(options)) {}
  at::Tensor step(LossClosure) override { return step(); }
  at::Tensor step() {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : param_groups()[0].params()) p.sub_(p.grad() / p.grad().norm());
    return {};
  }
};

}  // namespace

namespace tessera {
template <>
struct TorchParamState<Whole> {
  using type = WholeState;
};
}  // namespace tessera

TEST_CASE("what does not treat every element alone is refused") {
  CHECK_THROWS_WITH(make_from_torch<optim::LBFGS>(optim::LBFGSOptions()),
                    test::contains("LBFGS is not known to treat every element alone"));
  CHECK_THROWS_WITH(make_from_torch<Whole>(WholeOptions()),
                    test::contains("is not element-wise, or does not begin with zeros"));
  CHECK_THROWS_WITH(
      make_from_torch<optim::Adagrad>(optim::AdagradOptions(1).initial_accumulator_value(1)),
      test::contains("does not begin with zeros"));
}
