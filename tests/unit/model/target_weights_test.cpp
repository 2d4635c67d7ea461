// SPDX-License-Identifier: MIT
// Losses with a weight for each target, against autograd on a single rank.
#include "tessera/model/target_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/model/tensor_parallel.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::require_error;
using tessera::test::run_ranks;

namespace {

constexpr int64_t kWeightedWords = 11;

at::Tensor normal_values(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kFloat);
}

void require_near_weighted(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(at::allclose(actual, expected, 1e-5, 1e-6));
}

struct WeightedCase {
  at::Tensor hidden = normal_values({2, 5, 6}, 1), table = normal_values({kWeightedWords, 6}, 2);
  at::Tensor labels = at::tensor({3, 0, -100, 10, 7, 1, -100, 10, 2, -100}, at::kLong).view({2, 5});
  at::Tensor weights = normal_values({2, 5}, 3), scale = at::scalar_tensor(0.37);

  at::Tensor log_probabilities(const at::Tensor& h, const at::Tensor& t) const {
    return -at::cross_entropy_loss(at::linear(h, t).flatten(0, 1), labels.flatten(), {},
                                   at::Reduction::None, kIgnoredLabel);
  }
};

}  // namespace

TEST_CASE("a target's weight multiplies its loss and its gradients under every layout") {
  const WeightedCase c;
  const at::Tensor hidden = c.hidden.clone().requires_grad_();
  const at::Tensor table = c.table.clone().requires_grad_();
  const at::Tensor expected = -(c.log_probabilities(hidden, table) * c.weights.flatten()).sum();
  torch::autograd::backward({expected}, {c.scale});
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t chunk_rows : {4, 1024}) {
      for (const bool given : {true, false}) {  // the loss's gradient, in forward or in backward
        run_ranks(ranks, [&](Communicator& comm) {
          const BuildContext context{.tensor = &comm};
          const TensorAxis axis(context);
          const Parameter part =
              cut_parameter("table", c.table, true, {.dim = 0, .padded = true}, axis);
          part.tensor.mutable_grad() = at::zeros_like(part.tensor);
          const at::Tensor x = c.hidden.clone().requires_grad_();
          const at::Tensor loss = vocab_parallel_cross_entropy(
              x, part.tensor,
              {.labels = c.labels, .weights = c.weights.flatten(), .chunk_rows = chunk_rows},
              given ? c.scale : at::Tensor(), kWeightedWords, axis);
          require_near_weighted(loss.detach(), expected.detach());
          torch::autograd::backward({loss}, {c.scale});
          require_near_weighted(x.grad(), hidden.grad());
          require_near_weighted(gather_whole(part.tensor.grad(), part.placement), table.grad());
        });
      }
    }
  }
}

TEST_CASE("weights follow the positions of the head, and must be like the labels") {
  const WeightedCase c;
  MicroBatch batch = make_micro_batch(at::zeros({2, 5}, at::kLong), c.labels);
  REQUIRE_FALSE(target_weights(batch).defined());
  batch.extra[kTargetWeights] = c.weights;
  require_near_weighted(target_weights(batch), c.weights.flatten());
  batch.head_positions = at::tensor({8, 1}, at::kLong);
  require_near_weighted(target_weights(batch), at::stack({c.weights[1][3], c.weights[0][1]}));
  batch.extra[kTargetWeights] = c.weights.narrow(1, 0, 4);
  require_error(
      ErrorCode::kInvalidArgument, [&] { target_weights(batch); }, "as the labels");
  batch.extra[kTargetWeights] = c.weights.to(at::kDouble);
  require_error(
      ErrorCode::kInvalidArgument, [&] { target_weights(batch); }, "expected Float");
}

TEST_CASE("log-probabilities are those of the labels, and 0 where there is none") {
  const WeightedCase c;
  const at::Tensor scores = at::linear(c.hidden, c.table), before = scores.clone();
  require_near_weighted(log_probabilities_of(scores, c.labels),
                        c.log_probabilities(c.hidden, c.table));
  REQUIRE(at::equal(scores, before));
  require_error(
      ErrorCode::kInvalidArgument, [&] { log_probabilities_of(scores, c.labels[0]); },
      "one row a label");
}
