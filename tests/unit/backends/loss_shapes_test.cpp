// SPDX-License-Identifier: MIT
// Users' losses: the sum over the targets, or rejected.
#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tests/support/test.hpp"
#include "tests/unit/backends/module_shapes.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

struct LossShape {
  std::string name;
  LossFunction loss;
  std::vector<std::string> refusal = {};  // parts of the message; empty: trains as in LibTorch
  // Mean loss over all rows for the plain loop; empty: `loss` divided by the number of rows.
  LossFunction mean = nullptr;
  std::function<void(MicroBatch&)> adjust = nullptr;
  int counters = 0;
};

nn::Sequential network() { return nn::Sequential(nn::Linear(6, 5), nn::Tanh(), nn::Linear(5, 3)); }

void check_losses(const std::vector<MicroBatch>& data, const std::vector<LossShape>& shapes) {
  torch::manual_seed(3);
  const nn::Sequential net = network();
  const std::string before = state_of(*net);
  for (const LossShape& shape : shapes) {
    INFO(shape.name);
    const auto model = [&] {
      return from_sequential(net, shape.loss, {.counters = shape.counters});
    };
    nn::Sequential plain(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()));
    Trained expected;
    if (shape.refusal.empty()) {
      expected = train_plain(*plain, data, [&](const MicroBatch& batch) {
        const at::Tensor output = plain->forward(batch.input_ids);
        if (!shape.mean) return shape.loss(output, batch).flatten()[0];
        return shape.mean(output, batch) * batch.target_count;  // cancels the loop's division
      });
    }
    for (const auto& [layout, config, mesh] : layouts_of_shapes(/*several_blocks=*/true)) {
      INFO(layout);
      const std::string outcome = within_limit(shape.name + ", " + layout, [&] {
        const Trained trained = train_under(config, mesh, model, {data, 6, shape.adjust});
        return difference(trained, expected);
      });
      INFO(outcome);
      for (const std::string& word : shape.refusal) CHECK_THAT(outcome, test::contains(word));
      if (shape.refusal.empty()) CHECK(outcome == "");
      CHECK(state_of(*net) == before);
    }
  }
}

at::Tensor class_weights() { return at::tensor({0.5f, 2.0f, 1.0f}); }

template <typename Reduction>
LossFunction cross_entropy(Reduction reduction, at::Tensor weight = {}) {
  return [=](const at::Tensor& output, const MicroBatch& batch) {
    return F::cross_entropy(output, batch.labels,
                            F::CrossEntropyFuncOptions().weight(weight).reduction(reduction));
  };
}

template <typename Reduction>
LossFunction mse(Reduction reduction) {
  return [=](const at::Tensor& output, const MicroBatch& batch) {
    return F::mse_loss(output, batch.labels, F::MSELossFuncOptions().reduction(reduction));
  };
}

}  // namespace

TEST_CASE("losses over classes are sums, or refused") {
  const std::vector<std::string> mean{"block 2", "the loss", "no sum", "torch::kSum"};
  check_losses(
      rows_with_classes(),
      {{"a sum", cross_entropy(torch::kSum), {}, cross_entropy(torch::kMean)},
       {"a mean", cross_entropy(torch::kMean), mean},
       {"a weighted mean", cross_entropy(torch::kMean, class_weights()), mean},
       {"a sum divided by its rows",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return cross_entropy(torch::kSum)(output, batch) / output.size(0);
        },
        mean},
       {"a sum of shares",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return (cross_entropy(torch::kNone)(output, batch) / batch.target_count).sum();
        },
        mean},
       {"two means added",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return cross_entropy(torch::kMean)(output, batch) + 0.1 * output.square().mean();
        },
        mean},
       {"a loss a row", cross_entropy(torch::kNone), {"block 2", "the loss has shape [2]"}},
       {"a sum with class weights",
        cross_entropy(torch::kSum, class_weights()),
        {"block 2", "class weights", "sum of the weights"}},
       {"weights by hand",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return (class_weights().index_select(0, batch.labels) *
                  cross_entropy(torch::kNone)(output, batch))
              .sum();
        }},
       {"a sum with a counter",
        [](const at::Tensor& output, const MicroBatch& batch) {
          const at::Tensor right = output.argmax(1).eq(batch.labels).sum().to(at::kFloat);
          return at::stack({cross_entropy(torch::kSum)(output, batch), right});
        },
        {},
        nullptr,
        nullptr,
        /*counters=*/1},
       {"a counter that is not declared",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return at::stack({cross_entropy(torch::kSum)(output, batch), output.sum().detach()});
        },
        {"block 2", "the loss has shape [2]", "ModuleOptions::counters"}},
       {"counters that are missing",
        cross_entropy(torch::kSum),
        {"block 2", "2 counters"},
        nullptr,
        nullptr,
        /*counters=*/2}});
}

TEST_CASE("losses over numbers are sums, or refused") {
  check_losses(
      rows_with_numbers(),
      {{"a sum by hand",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return (output - batch.labels).square().sum();
        }},
       {"a sum of means over columns",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return (output - batch.labels).square().sum(0).mean();
        },
        {},
        mse(torch::kMean)},
       {"a share of a sum",
        [](const at::Tensor& output, const MicroBatch& batch) {
          return (output - batch.labels).square().sum() / 3;
        },
        {},
        mse(torch::kMean)},
       {"a mean over elements", mse(torch::kMean), {"block 2", "the loss", "no sum"}},
       {"a sum over elements, counted by rows",
        mse(torch::kSum),
        {"block 2", "mse_loss", "[2, 3]", "the 6 elements", "the 2 rows", "labels.numel()"}},
       {"a sum over elements, counted by elements",
        mse(torch::kSum),
        {},
        mse(torch::kMean),
        [](MicroBatch& batch) { batch.target_count = batch.labels.numel(); }},
       {"a mean of a whole micro-batch",
        mse(torch::kMean),
        {},
        mse(torch::kMean),
        [](MicroBatch& batch) { batch.target_count = 1; }}});
}
