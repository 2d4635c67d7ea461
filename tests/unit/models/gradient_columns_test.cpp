// SPDX-License-Identifier: MIT
// Consecutive blocks: column sums passed to the earlier block change no gradient.
#include "lib/core/gradient_columns.h"

#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "tests/support/test.hpp"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

using Between = std::function<at::Tensor(const at::Tensor&)>;

// Gradients of both blocks' weights and of the input.
Tensors gradients(Version version, const DecoderCase& test, const at::Tensor& hidden,
                  const Between& between) {
  Tensors first, second;
  for (const at::Tensor& w : test.tensors()) {
    first.push_back(leaf(w.to(hidden.scalar_type())));
    second.push_back(leaf(w.to(hidden.scalar_type()) * 0.9));
    first.back().mutable_grad() = at::zeros_like(first.back());
    second.back().mutable_grad() = at::zeros_like(second.back());
  }
  DecoderBlockOptions options = test.options;
  options.gradient_columns = std::make_shared<GradientColumns>();
  const at::Tensor input = leaf(hidden);
  const at::Tensor middle = between(run_decoder(version, input, test.with(first), options, {}));
  const at::Tensor output = run_decoder(version, middle, test.with(second), options, {});
  torch::autograd::backward(
      {output}, {at::linspace(-1, 1, output.numel(), output.options()).view_as(output)});
  Tensors result{input.grad()};
  for (const Tensors& tensors : {first, second}) {
    for (const at::Tensor& w : tensors) result.push_back(w.grad());
  }
  return result;
}

}  // namespace

TEST_CASE("blocks that follow each other have the gradients of the composed ones") {
  at::manual_seed(31);
  const DecoderSizes sizes;
  const std::vector<std::pair<const char*, Between>> all{
      {"nothing", [](const at::Tensor& x) { return x; }},
      {"a view",
       [](const at::Tensor& x) {
         return x.view({-1, x.size(2)}).view(x.sizes());
       }},
      {"a factor", [](const at::Tensor& x) { return x * 3; }},
      {"two uses", [](const at::Tensor& x) { return x + x.sin(); }},
      {"a gradient that is overwritten", [](const at::Tensor& x) {
         x.register_hook([](const at::Tensor& gradient) { at::Tensor(gradient).mul_(3); });
         return x;
       }}};
  for (DecoderCase test : decoder_cases(sizes)) {
    for (const bool post : {false, true}) {
      test.options.residual_post_layernorm = post;
      const at::Tensor hidden = at::randn({2, 5, sizes.hidden}, at::kDouble);
      for (const auto& [name, between] : all) {
        const Tensors a = gradients(Version::kFused, test, hidden, between);
        const Tensors b = gradients(Version::kComposed, test, hidden, between);
        for (size_t i = 0; i < a.size(); ++i) {
          INFO(test.name << " post " << post << ", between them " << name << ", gradient " << i);
          CHECK(relative_error(a[i], b[i]) < 1e-11);
        }
      }
    }
  }
}

TEST_CASE("column sums go with the gradient they are of, and no other") {
  GradientColumns between;
  const auto handed = [&](const at::Tensor& gradient) {
    between.hand(gradient, at::full({1, 3}, 7.0));
  };
  const at::Tensor gradient = at::ones({2, 3});
  handed(gradient);
  CHECK(between.take(gradient).defined());
  CHECK_FALSE(between.take(gradient).defined());  // only once
  handed(gradient);
  CHECK(between.take(gradient.detach().view({3, 2}).view({2, 3})).defined());
  handed(gradient);
  CHECK_FALSE(between.take(gradient.clone()).defined());
  CHECK_FALSE(between.take(gradient).defined());
  handed(gradient);
  CHECK_FALSE(between.take(gradient.narrow(0, 0, 1)).defined());
  handed(gradient);
  at::Tensor(gradient).add_(1);
  CHECK_FALSE(between.take(gradient).defined());
  {
    const at::Tensor freed = at::ones({2, 3});
    handed(freed);
  }
  CHECK_FALSE(between.take(at::ones({2, 3})).defined());
  handed(gradient);
  between.hand(gradient, {});
  CHECK_FALSE(between.take(gradient).defined());
}
