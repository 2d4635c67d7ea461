// SPDX-License-Identifier: MIT
// Backward of a block with a single node, as by the autograd engine.
#include "backends/common/block_backward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include "tests/support/test.hpp"

using namespace tessera;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// x -> 3 x^2
class Square : public torch::autograd::Function<Square> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return 3 * x * x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    saw_gradients = at::GradMode::is_enabled();
    ++calls;
    return {6 * context->get_saved_variables()[0] * gradients[0]};
  }
  static inline int calls = 0;
  static inline bool saw_gradients = true;
};

at::Tensor leaf() { return at::arange(1, 7, at::kFloat).view({2, 3}).set_requires_grad(true); }

const at::Tensor kGradient = at::arange(6, at::kFloat).view({2, 3}) - 2;

}  // namespace

TEST_CASE("a block of one node gives its input's gradient without the engine") {
  const at::Tensor x = leaf();
  Square::calls = 0;
  const at::Tensor y = Square::apply(x);
  const at::Tensor gradient = block_backward(y, kGradient, x);
  CHECK(at::equal(gradient, 6 * x.detach() * kGradient));
  CHECK(Square::calls == 1);
  CHECK_FALSE(Square::saw_gradients);
  CHECK_FALSE(gradient.requires_grad());
  CHECK_FALSE(x.grad().defined());  // not requested
  // Its saved tensors are freed, as by the engine.
  CHECK_THROWS(block_backward(y, kGradient, x));
}

TEST_CASE("a block of several nodes goes through the engine") {
  const at::Tensor x = leaf(), weight = leaf();
  CHECK(at::equal(block_backward(Square::apply(x).mul(2), kGradient, x),
                  12 * x.detach() * kGradient));
  CHECK(x.grad().defined());
  const at::Tensor z = leaf();
  CHECK(at::equal(block_backward(z * weight, kGradient, z), weight.detach() * kGradient));
  CHECK(at::equal(weight.grad(), z.detach() * kGradient));
}

TEST_CASE("a block that uses its input twice in one node gets the sum") {
  const at::Tensor x = leaf();
  CHECK(at::equal(block_backward(x * x, kGradient, x), 2 * x.detach() * kGradient));
}

TEST_CASE("hooks of a block's input and output run") {
  const at::Tensor x = leaf();
  int input_hooks = 0, output_hooks = 0;
  x.register_hook([&](const at::Tensor&) { ++input_hooks; });
  const at::Tensor y = Square::apply(x);
  CHECK(at::equal(block_backward(y, kGradient, x), 6 * x.detach() * kGradient));
  CHECK(input_hooks == 1);
  const at::Tensor z = leaf(), out = Square::apply(z);
  out.register_hook([&](const at::Tensor& g) {
    ++output_hooks;
    return 2 * g;
  });
  CHECK(at::equal(block_backward(out, kGradient, z), 12 * z.detach() * kGradient));
  CHECK(output_hooks == 1);
}

TEST_CASE("a block whose input is not trained, or is none, gets no gradient back") {
  const at::Tensor ids = at::arange(3), weight = leaf();
  const at::Tensor table = at::embedding(weight, at::tensor({0, 1}, at::kLong));
  CHECK_FALSE(block_backward(table, kGradient, ids).defined());
  CHECK(at::equal(weight.grad(), kGradient));
  const at::Tensor other = leaf();
  CHECK_FALSE(block_backward(Square::apply(other), kGradient, {}).defined());
  CHECK(at::equal(other.grad(), 6 * other.detach() * kGradient));
}

TEST_CASE("the gradient of an expanded input is summed") {
  const at::Tensor x = at::ones({1, 3}, at::kFloat).set_requires_grad(true);
  CHECK(at::equal(block_backward(x.expand({2, 3}), kGradient, x), kGradient.sum(0, true)));
}
