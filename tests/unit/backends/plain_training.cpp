// SPDX-License-Identifier: MIT
#include "tests/unit/backends/plain_training.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <atomic>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/toy_models.h"

namespace tessera::testing {
namespace {

constexpr double kLearningRate = 0.1, kMomentum = 0.9, kWeightDecay = 0.05;
constexpr double kTolerance = 1e-5;

void add_once(std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  if (std::none_of(list.begin(), list.end(), [&](const auto& t) { return t.is_same(tensor); })) {
    list.push_back(tensor);
  }
}

double squared_norm(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : module.parameters()) add_once(all, parameter);
  double sum = 0;
  for (const at::Tensor& parameter : all) {
    if (parameter.grad().defined()) {
      sum += parameter.grad().to(at::kDouble).square().sum().item<double>();
    }
  }
  return sum;
}

}  // namespace

Trained train_plain(torch::nn::Module& module, std::span<const MicroBatch> batches,
                    const std::function<at::Tensor(const MicroBatch&)>& loss) {
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& parameter : module.parameters()) {
    add_once(parameter.dim() >= 2 ? matrices : others, parameter);
  }
  auto options = [](double decay) {
    return std::make_unique<torch::optim::SGDOptions>(
        torch::optim::SGDOptions(kLearningRate).momentum(kMomentum).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, options(kWeightDecay));
  groups.emplace_back(others, options(0));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(kLearningRate));
  Trained trained;
  for (const MicroBatch& batch : batches) {
    optimizer.zero_grad();
    const at::Tensor mean = loss(batch) / static_cast<double>(batch.target_count);
    mean.backward();
    trained.losses.push_back(mean.item<double>());
    trained.squared_norms.push_back(squared_norm(module));
    optimizer.step();
  }
  for (const auto& item : module.named_parameters()) {
    trained.weights[item.key()] = item.value().detach().clone();
  }
  return trained;
}

Trained train_under(const ParallelConfig& config, const MeshExtents& extents,
                    const ModelSpec& model, const TrainingWork& work) {
  return train_under(
      config, extents, [&] { return model; }, work);
}

Trained train_under(const ParallelConfig& config, const MeshExtents& extents,
                    const std::function<ModelSpec()>& model_of_rank, const TrainingWork& work) {
  Trained trained;
  std::atomic<int64_t> optimizer_bytes = 0;
  test::run_ranks(rank_count(extents), [&](Communicator& world) {
    const ModelSpec model = model_of_rank();
    Player player(world, {model, extents, config,
                          make_sgd({.momentum = kMomentum, .weight_decay = kWeightDecay})});
    Strategy& strategy = player.strategy();
    for (const MicroBatch& batch : work.batches) {
      const int64_t rows = batch.sample_count / work.micro_batches;
      const int own = work.micro_batches / player.data_ranks();
      std::vector<MicroBatch> mine;
      for (int m = 0; m < own; ++m) {
        mine.push_back(rows_of(batch, (player.data_rank() * own + m) * rows, rows));
        if (work.adjust) work.adjust(mine.back());
      }
      strategy.evaluate(mine);  // must change nothing
      const double loss = player.forward_backward(mine, work.calls).loss;
      const double norm = strategy.grad_norm_squared().item<double>();
      double visited = 0;
      strategy.visit_gradients([&](const VisitedParameter& gradient) {
        visited += gradient.value.to(at::kDouble).square().sum().item<double>();
      });
      test::require(std::abs(visited - norm) <= 1e-4 * norm, "gradients of norm ", visited,
                    " beside one of ", norm);
      if (world.rank() == 0) {
        trained.losses.push_back(loss);
        trained.squared_norms.push_back(norm);
      }
      strategy.optimizer_step(kLearningRate);
    }
    strategy.visit_parameters([&](const VisitedParameter& parameter) {
      if (world.rank() != 0) return;
      const std::string block = model.block_count() > 1 ? parameter.block + "." : "";
      trained.weights[block + parameter.name] = parameter.value.clone();
      if (parameter.placement.frozen) trained.frozen.insert(block + parameter.name);
    });
    optimizer_bytes += strategy.memory().optimizer_bytes;
  });
  trained.optimizer_bytes = optimizer_bytes;
  return trained;
}

std::string difference(const Trained& actual, const Trained& expected) {
  if (actual.squared_norms.size() != expected.squared_norms.size()) return "other steps";
  for (size_t i = 0; i < expected.squared_norms.size(); ++i) {
    const double loss = actual.losses[i], right = expected.losses[i];
    if (!(std::abs(loss - right) <= kTolerance * std::abs(right))) {
      return concat("the loss of step ", i, " is ", loss, ", expected ", right);
    }
    const double a = actual.squared_norms[i], e = expected.squared_norms[i];
    if (!(std::abs(a - e) <= 2 * kTolerance * e)) {
      return concat("squared norm of step ", i, " is ", a, ", expected ", e);
    }
  }
  for (const auto& [name, value] : expected.weights) {
    if (!actual.weights.contains(name)) return concat(name, " is missing");
    const double largest = (actual.weights.at(name) - value).abs().max().item<double>();
    const double scale = value.abs().max().item<double>();
    if (!(largest <= kTolerance * scale))
      return concat(name, " differs by ", largest, " of ", scale);
  }
  for (const auto& [name, value] : actual.weights) {
    if (!expected.weights.contains(name)) return concat(name, " is not expected");
  }
  return "";
}

std::vector<NamedLayout> layouts_of_modules() {
  std::vector<NamedLayout> all;
  for (const std::string name : {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const bool again : {false, true}) {
      const ParallelConfig config{
          .strategy = name, .persistence_threshold = 8, .gradient_checkpointing = again};
      const std::string with = again ? " with recomputation" : "";
      all.push_back({name + with, config, {.data = name == "single" ? 1 : 2}});
      if (name == "ddp" || name == "fsdp") {
        all.push_back({"2 stages, " + name + with, config, {.pipeline = 2}});
      }
    }
  }
  return all;
}

}  // namespace tessera::testing
