// SPDX-License-Identifier: MIT
// Users' optimizers given as one function.
#include "tessera/optim/elementwise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

using State = std::vector<at::Tensor>;

at::Tensor adamw(const ElementwiseStep& step, State& state) {
  state[0] = state[0] * 0.9 + step.gradient * 0.1;
  state[1] = state[1] * 0.999 + step.gradient.square() * 0.001;
  // 1 - beta^step, to fp32's precision
  const at::Tensor first = state[0] / -at::expm1(step.step * std::log(0.9));
  const at::Tensor second = state[1] / -at::expm1(step.step * std::log(0.999));
  return step.parameter * (1 - step.learning_rate * step.weight_decay) -
         step.learning_rate * first / (second.sqrt() + 1e-8);
}

OptimizerRange range_of(const at::Tensor& parameter, const at::Tensor& gradient, bool decays) {
  return {.parameter = parameter,
          .gradient = gradient,
          .weight_decay = decays,
          .rule = {.lr_factor = decays ? 0.5 : 1.0}};
}

// Five steps of two ranges; the third step is skipped.
at::Tensor trained(const OptimizerFactory& factory) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(4);
  const at::Tensor parameter = at::randn({40}, generator), gradient = at::empty({40});
  const auto optimizer =
      factory({range_of(parameter.narrow(0, 0, 15), gradient.narrow(0, 0, 15), true),
               range_of(parameter.narrow(0, 15, 25), gradient.narrow(0, 15, 25), false)});
  for (int step = 0; step < 5; ++step) {
    gradient.copy_(at::randn({40}, generator));
    optimizer->begin_step({.learning_rate = at::full({}, 0.01),
                           .gradient_scale = at::full({}, 0.3),
                           .skip = at::full({}, step == 2 ? 1.0 : 0.0)});
    optimizer->update(0, optimizer->range_count());
  }
  return parameter;
}

std::string refusal(size_t states, const ElementwiseUpdate& update, double decay = 0) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    make_elementwise("Mine", std::vector<std::string>(states, "kept"), update, decay);
  });
}

}  // namespace

TEST_CASE("AdamW as a function of one's own is AdamW") {
  const at::Tensor own = trained(make_elementwise("Own", {"exp_avg", "exp_avg_sq"}, adamw, 0.1));
  const at::Tensor built_in = trained(make_adamw({.weight_decay = 0.1}));
  CHECK(at::allclose(own, built_in, 1e-6, 1e-7));
}

TEST_CASE("a function that is no element-wise update is refused") {
  CHECK_THAT(refusal(0, nullptr), test::contains("no update function"));
  CHECK_THAT(refusal(
                 0, [](const ElementwiseStep& step, State&) { return step.parameter; }, -1),
             test::contains("must not be negative"));
  CHECK_THAT(
      refusal(0, [](const ElementwiseStep& step,
                    State&) { return step.parameter - step.gradient / step.gradient.norm(); }),
      test::contains("Mine is not element-wise"));
  CHECK_THAT(refusal(0, [](const ElementwiseStep& step, State&) { return step.parameter.sum(); }),
             test::contains("must return the parameter in its shape"));
  CHECK_THAT(refusal(1,
                     [](const ElementwiseStep& step, State& state) {
                       state[0] = step.gradient.sum();
                       return step.parameter;
                     }),
             test::contains("a state must keep the parameter's shape"));
  CHECK_THAT(refusal(1,
                     [](const ElementwiseStep& step, State& state) {
                       state[0].add_(step.gradient);
                       return step.parameter - state[0];
                     }),
             test::contains("changes a state in place"));
  CHECK_THAT(refusal(0, [](const ElementwiseStep& step,
                           State&) { return step.parameter.sub_(step.gradient); }),
             test::contains("changes the parameter in place"));
}
