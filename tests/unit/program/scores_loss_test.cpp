// SPDX-License-Identifier: MIT
// The loss of a program's scores with a weight for each row, against autograd.
#include "lib/program/scores_loss.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

at::Tensor normal_scores(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kFloat);
}

}  // namespace

TEST_CASE("rows of a program's scores have weights, whole and in chunks") {
  const at::Tensor labels = at::tensor({3, 0, -100, 4, 2}, at::kLong);
  const at::Tensor weights = normal_scores({5}, 1), scale = at::scalar_tensor(0.37);
  const at::Tensor first = normal_scores({5, 6}, 2), second = normal_scores({5, 6}, 3);
  const at::Tensor hidden = first.clone().requires_grad_(), table = second.clone().requires_grad_();
  const at::Tensor expected =
      (at::cross_entropy_loss(at::linear(hidden, table), labels, {}, at::Reduction::None, -100) *
       weights)
          .sum();
  torch::autograd::backward({expected}, {scale});
  for (const auto& [chunk, own_scores] :
       {std::pair<int64_t, bool>{0, false}, {2, false}, {2, true}, {1024, true}}) {  // 0: whole
    const at::Tensor h = first.clone().requires_grad_(), t = second.clone().requires_grad_();
    const auto scores_of = [&](const at::Tensor& rows) { return at::linear(rows, t); };
    const at::Tensor loss = chunk == 0 ? program::loss_of_scores(scores_of(h), labels, weights)
                                       : program::chunked_loss(scores_of, h, labels, scale, t,
                                                               weights, own_scores, chunk);
    REQUIRE(at::allclose(loss.detach(), expected.detach(), 1e-5, 1e-6));
    torch::autograd::backward({loss}, {scale});
    REQUIRE(at::allclose(h.grad(), hidden.grad(), 1e-5, 1e-6));
    REQUIRE(at::allclose(t.grad(), table.grad(), 1e-5, 1e-6));
    const at::NoGradGuard no_grad;
    const at::Tensor again =
        chunk == 0 ? program::loss_of_scores(scores_of(h), labels, weights)
                   : program::chunked_loss(scores_of, h, labels, {}, t, weights, own_scores, chunk);
    REQUIRE(at::allclose(again, expected.detach(), 1e-5, 1e-6));
  }
}
