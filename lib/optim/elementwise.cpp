// SPDX-License-Identifier: MIT
#include "tessera/optim/elementwise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "lib/optim/description.h"
#include "lib/optim/flat_optimizer.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class Elementwise final : public FlatOptimizer {
 public:
  Elementwise(std::vector<std::string> state_names, ElementwiseUpdate update, double weight_decay,
              std::string description, std::vector<OptimizerRange> ranges)
      : FlatOptimizer(std::move(state_names), std::move(ranges)),
        update_(std::move(update)),
        weight_decay_(weight_decay),
        description_(std::move(description)) {}
  std::string describe() const override { return description_; }

 protected:
  at::Tensor updated(const Update& update, std::vector<at::Tensor>& state) const override {
    return update_({.parameter = update.range.parameter,
                    .gradient = update.gradient,
                    .learning_rate = update.learning_rate,
                    .step = step_count().to(at::kFloat),
                    .weight_decay = update.range.decay(weight_decay_)},
                   state);
  }

 private:
  const ElementwiseUpdate update_;
  const double weight_decay_;
  const std::string description_;
};

// Runs some steps of a small parameter, for `numel` elements from `begin` on.
at::Tensor tried(const std::string& name, size_t states, const ElementwiseUpdate& update,
                 double weight_decay, int64_t begin, int64_t numel) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto draw = [&] { return at::randn({8}, generator).narrow(0, begin, numel).clone(); };
  at::Tensor parameter = draw();
  std::vector<at::Tensor> state(states, at::zeros({numel}));
  for (int step = 1; step <= 3; ++step) {
    const ElementwiseStep given{parameter, draw(), at::full({}, 0.1),
                                at::full({}, static_cast<double>(step)), weight_decay};
    std::vector<at::Tensor> before{parameter.clone(), given.gradient.clone()}, becomes = state;
    for (const at::Tensor& tensor : state) before.push_back(tensor.clone());
    const at::Tensor result = update(given, becomes);
    check(result.defined() && result.sizes() == parameter.sizes() && becomes.size() == states,
          ErrorCode::kInvalidArgument, name,
          ": the function must return the parameter in its shape, and keep every state");
    std::vector<at::Tensor> after{parameter, given.gradient};
    after.insert(after.end(), state.begin(), state.end());
    for (size_t i = 0; i < after.size(); ++i) {
      check(after[i].equal(before[i]), ErrorCode::kInvalidArgument, name, ": the function changes ",
            i == 0   ? "the parameter"
            : i == 1 ? "the gradient"
                     : "a state",
            " in place; return or replace it");
    }
    for (const at::Tensor& tensor : becomes) {
      check(tensor.defined() && tensor.sizes() == parameter.sizes(), ErrorCode::kInvalidArgument,
            name, ": a state must keep the parameter's shape");
    }
    parameter = result;
    state = std::move(becomes);
  }
  return parameter;
}

}  // namespace

OptimizerFactory make_elementwise(const std::string& name, std::vector<std::string> state_names,
                                  ElementwiseUpdate update, double weight_decay) {
  check(update != nullptr, ErrorCode::kInvalidArgument, name, ": there is no update function");
  check(weight_decay >= 0, ErrorCode::kInvalidArgument, name, ": weight decay ", weight_decay,
        " must not be negative");
  const at::NoGradGuard no_grad;
  const auto alone = [&](int64_t begin, int64_t numel) {
    return tried(name, state_names.size(), update, weight_decay, begin, numel);
  };
  const at::Tensor whole = alone(0, 8);
  check(
      at::allclose(at::cat({alone(0, 3), alone(3, 5)}), whole, 1e-5, 1e-7),
      ErrorCode::kInvalidArgument, name,
      " is not element-wise: a piece of a parameter alone is updated otherwise than in the whole; "
      "a strategy updates pieces of parameters, each for itself");
  std::string text = described(name, {{"weight_decay", weight_decay}});
  for (const std::string& state : state_names) text += " " + state;
  text += concat(", whose trial gave", trial_text(whole));
  return [=, states = std::move(state_names), text = std::move(text)](
             std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    refuse_betas(ranges, name);
    return std::make_unique<Elementwise>(states, update, weight_decay, text, std::move(ranges));
  };
}

}  // namespace tessera
