// SPDX-License-Identifier: MIT
// Running statistics: data ranks see other rows, and those of one named rank are the model's.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lib/testing/player.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/adapters.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"
#include "tests/unit/backends/plain_training.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

MicroBatch rows(uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return make_micro_batch(at::randn({8, 6}, generator) * 3 + 1, at::randn({8, 2}, generator));
}

nn::Sequential with_batch_norm() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(6, 5), nn::BatchNorm1d(5), nn::Tanh(), nn::Linear(5, 2));
}

// Mean error of the module with these values in eval mode, in plain LibTorch.
double plain_loss(const std::map<std::string, at::Tensor>& values,
                  const std::vector<MicroBatch>& batches) {
  const at::NoGradGuard no_grad;
  nn::Sequential module = with_batch_norm();
  for (const auto& items : {module->named_parameters(), module->named_buffers()}) {
    for (const auto& item : items) at::Tensor(item.value()).copy_(values.at(item.key()));
  }
  module->eval();
  double sum = 0, targets = 0;
  for (const MicroBatch& batch : batches) {
    sum += squared_error(module->forward(batch.input_ids), batch).item<double>();
    targets += static_cast<double>(batch.target_count);
  }
  return sum / targets;
}

}  // namespace

TEST_CASE("every rank evaluates with the running statistics of the named rank") {
  const std::vector<MicroBatch> evaluation{rows(50), rows(51), rows(52), rows(53)};
  for (const auto& [name, config, extents] : layouts_of_modules()) {
    const int of_rank = extents.data - 1;
    const ModelSpec model =
        from_sequential(with_batch_norm(), squared_error, {.running_statistics_of_rank = of_rank});
    INFO(name);
    play({.model = model,
          .mesh = extents,
          .parallel = config,
          .optimizer = make_sgd({.momentum = 0.9}),
          .seed = 1},
         [&, extents = extents, config = config](Player& player) {
           Strategy& strategy = player.strategy();
           const Communicator& data = player.mesh().axis(Axis::kData);
           for (uint64_t step = 0; step < 3; ++step) {
             const auto seed = 2 * step + static_cast<uint64_t>(data.rank());
             strategy.forward_backward(std::vector<MicroBatch>{rows(seed)});
             strategy.optimizer_step(0.05);
           }
           std::vector<MicroBatch> mine;
           for (size_t i = static_cast<size_t>(data.rank()); i < evaluation.size();
                i += static_cast<size_t>(data.size())) {
             mine.push_back(evaluation[i]);
           }
           const double loss = strategy.evaluate(mine).loss.item<double>();
           std::map<std::string, at::Tensor> values;
           const ParameterVisitor keep = [&](const VisitedParameter& p) {
             values[p.block + "." + p.name] = p.value.clone();
           };
           strategy.visit_parameters(keep);
           strategy.visit_buffers(keep);
           const double expected = plain_loss(values, evaluation);
           test::require(std::abs(loss - expected) <= 1e-6 * expected, "rank ", player.rank(),
                         ": loss ", loss, ", expected ", expected);
         });
  }
}
