// SPDX-License-Identifier: MIT
// Running statistics: data ranks see different rows, and one named rank's are the model's.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

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

// Mean loss of the module with these values in eval mode, in plain LibTorch.
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

namespace {

// BatchNorm before and after everything that is trained.
nn::Sequential with_frozen_front() {
  torch::manual_seed(4);
  nn::Sequential net(nn::BatchNorm1d(nn::BatchNorm1dOptions(6).affine(false)), nn::Linear(6, 5),
                     nn::BatchNorm1d(5), nn::Tanh(), nn::Linear(5, 4), nn::BatchNorm1d(4),
                     nn::Linear(4, 2));
  for (const size_t frozen : {1, 2}) {
    for (at::Tensor& parameter : net->ptr(frozen)->parameters()) parameter.set_requires_grad(false);
  }
  return net;
}
constexpr const char* kFront[] = {"0.", "2."};

constexpr double kFrontRate = 0.05, kFrontMomentum = 0.9;
constexpr uint64_t kFrontSteps = 3, kFrontBatches = 2;

MicroBatch rows_of_rank(uint64_t step, int rank, uint64_t micro_batch) {
  return rows(100 * step + 10 * static_cast<uint64_t>(rank) + micro_batch);
}

// Buffers of a plain loop over one rank's rows.
Named plain_buffers(int rank) {
  nn::Sequential net = with_frozen_front();
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : net->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  torch::optim::SGD sgd(trained, torch::optim::SGDOptions(kFrontRate).momentum(kFrontMomentum));
  for (uint64_t step = 0; step < kFrontSteps; ++step) {
    sgd.zero_grad();
    double targets = 0;
    at::Tensor loss = at::zeros({});
    for (uint64_t m = 0; m < kFrontBatches; ++m) {
      const MicroBatch batch = rows_of_rank(step, rank, m);
      loss = loss + squared_error(net->forward(batch.input_ids), batch);
      targets += static_cast<double>(batch.target_count);
    }
    (loss / targets).backward();
    sgd.step();
  }
  Named buffers;
  for (const auto& item : net->named_buffers()) buffers[item.key()] = item.value().clone();
  return buffers;
}

std::vector<MicroBatch> own_rows(uint64_t step, const Player& player) {
  std::vector<MicroBatch> batches;
  for (uint64_t m = 0; m < kFrontBatches; ++m) {
    batches.push_back(rows_of_rank(step, player.data_rank(), m));
  }
  return batches;
}

// Compares buffers before the trained layers, or all if one rank has all rows.
void require_buffers(Player& player, const Named& expected) {
  const Named actual = buffers_of(player.strategy());
  test::require(actual.size() == expected.size(), "all buffers");
  for (const auto& [name, value] : expected) {
    const bool front = name.starts_with(kFront[0]) || name.starts_with(kFront[1]);
    if (!front && player.data_ranks() > 1) continue;
    test::require(at::allclose(actual.at(name), value, 1e-5, 1e-6), name, " is ",
                  actual.at(name).flatten()[0].item<double>(), " on rank ", player.rank(),
                  ", expected ", value.flatten()[0].item<double>());
  }
}

}  // namespace

TEST_CASE("statistics before everything that is trained advance as in a plain loop") {
  auto layouts = layouts_of_modules();
  for (const char* name : {"zero2", "fsdp"}) {
    ParallelConfig some{.strategy = name};
    some.recomputed_blocks = {0, 2, 5};
    layouts.push_back({name + std::string(" with some recomputation"), some, {.data = 2}});
  }
  ParallelConfig chunks{.strategy = "ddp"};
  chunks.pipeline = {.schedule = "interleaved", .chunks = 2};
  layouts.push_back({"interleaved", chunks, {.pipeline = 2}});
  for (const auto& [name, config, extents] : layouts) {
    const int of_rank = extents.data - 1;
    const ModelSpec model = from_sequential(with_frozen_front(), squared_error,
                                            {.running_statistics_of_rank = of_rank});
    const Named expected = plain_buffers(of_rank);
    INFO(name);
    CHECK_NOTHROW(play({.model = model,
                        .mesh = extents,
                        .parallel = config,
                        .optimizer = make_sgd({.momentum = kFrontMomentum})},
                       [&](Player& player) {
                         Strategy& strategy = player.strategy();
                         for (uint64_t step = 0; step < kFrontSteps; ++step) {
                           player.forward_backward(own_rows(step, player), 1 + (step % 2));
                           strategy.optimizer_step(kFrontRate);
                           strategy.evaluate(own_rows(7, player));  // must change nothing
                           strategy.predict(own_rows(8, player));
                         }
                         require_buffers(player, expected);
                       }));
  }
}

TEST_CASE("a pass of forward() in training mode advances statistics once, with gradients or not") {
  const ModelSpec model =
      from_sequential(with_frozen_front(), squared_error, {.running_statistics_of_rank = 0});
  // Made here, since ranks are threads that share LibTorch's generator.
  nn::Sequential net = with_frozen_front();
  net->forward(rows_of_rank(0, 0, 0).input_ids);
  Named expected;
  for (const auto& item : net->named_buffers()) expected[item.key()] = item.value();
  for (const bool again : {false, true}) {
    for (const bool gradients : {false, true}) {
      const ParallelConfig config{.strategy = "zero2", .gradient_checkpointing = again};
      INFO(again << gradients);
      CHECK_NOTHROW(
          play({.model = model, .mesh = {.data = 2}, .parallel = config, .optimizer = make_sgd({})},
               [&](Player& player) {
                 const MicroBatch batch = rows_of_rank(0, player.data_rank(), 0);
                 const at::AutoGradMode mode(gradients);
                 const at::Tensor scores = player.strategy().forward(batch);
                 if (gradients) scores.sum().backward();
                 const Named actual = buffers_of(player.strategy());
                 for (const auto& [name, value] : expected) {
                   test::require(at::allclose(actual.at(name), value, 1e-5, 1e-6), name);
                 }
               }));
    }
  }
}
