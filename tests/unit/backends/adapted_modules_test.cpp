// SPDX-License-Identifier: MIT
// Typical torch::nn modules in strategies, against the same steps in plain LibTorch.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"
#include "tests/unit/backends/plain_training.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

std::vector<MicroBatch> batches(int steps = 3) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  std::vector<MicroBatch> all;
  for (int i = 0; i < steps; ++i) {
    all.push_back(make_micro_batch(at::randn({8, 6}, generator), at::randn({8, 2}, generator)));
  }
  return all;
}

nn::ReLU relu_in_place() { return nn::ReLU(nn::ReLUOptions().inplace(true)); }
// Its gradient depends on how often it was applied, unlike ReLU's.
nn::ELU elu_in_place() { return nn::ELU(nn::ELUOptions().inplace(true)); }

nn::Sequential clone_of(const nn::Sequential& module) {
  return nn::Sequential(std::dynamic_pointer_cast<nn::SequentialImpl>(module->clone()));
}

Trained plain_training(const nn::Sequential& module, const std::vector<MicroBatch>& data) {
  nn::Sequential copy = clone_of(module);
  return train_plain(*copy, data, [&](const MicroBatch& batch) {
    return squared_error(copy->forward(batch.input_ids.clone()), batch);
  });
}

void check_all_layouts(const nn::Sequential& module) {
  const auto data = batches();
  const Trained expected = plain_training(module, data);
  const ModelSpec model = from_sequential(module, squared_error);
  for (const auto& [name, config, mesh] : layouts_of_modules()) {
    INFO(name);
    CHECK(difference(train_under(config, mesh, model, {data}), expected) == "");
  }
}

// An embedding tied to the head, and one layer under two names.
struct TiedNet : nn::Cloneable<TiedNet> {
  TiedNet() { reset(); }
  void reset() override {
    table = register_module("table", nn::Embedding(9, 4));
    head = register_parameter("head", table->weight);
    first = register_module("first", nn::Linear(4, 4));
    second = register_module("second", first);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor hidden = first->forward(at::tanh(first->forward(table->forward(ids))));
    return at::linear(second->forward(hidden), head);
  }
  nn::Embedding table{nullptr};
  nn::Linear first{nullptr}, second{nullptr};
  at::Tensor head;
};

}  // namespace

TEST_CASE("in-place operations at the start of a block train like plain LibTorch") {
  torch::manual_seed(3);
  check_all_layouts(nn::Sequential(nn::Linear(6, 5), relu_in_place(), nn::Linear(5, 5),
                                   elu_in_place(), nn::Linear(5, 2)));
}

TEST_CASE("an in-place first layer leaves the user's rows as they are") {
  torch::manual_seed(3);
  const nn::Sequential module(nn::Identity(), relu_in_place(), nn::Linear(6, 2));
  const nn::Sequential at_once(relu_in_place(), nn::Linear(6, 2));
  for (const nn::Sequential& each : {module, at_once}) {
    const auto data = batches();
    std::vector<at::Tensor> before;
    for (const MicroBatch& batch : data) before.push_back(batch.input_ids.clone());
    check_all_layouts(each);
    for (size_t i = 0; i < data.size(); ++i) {
      train_under({.gradient_checkpointing = i == 1}, {}, from_sequential(each, squared_error),
                  {{data[i]}});
      CHECK(at::equal(data[i].input_ids, before[i]));
    }
  }
}

TEST_CASE("what LibTorch refuses between layers is refused between blocks") {
  const nn::Sequential module(nn::Linear(6, 5), nn::Tanh(), relu_in_place(), nn::Linear(5, 2));
  const ModelSpec model = from_sequential(module, squared_error);
  const auto data = batches(1);
  nn::Sequential copy = clone_of(module);
  CHECK_THROWS_WITH(copy->forward(data[0].input_ids).sum().backward(),
                    test::contains("modified by an inplace operation"));
  for (const char* strategy : {"single", "ddp", "zero3"}) {
    const MeshExtents mesh{.data = *strategy == 's' ? 1 : 2};
    CHECK_THROWS_WITH(train_under({.strategy = strategy}, mesh, model, {data}),
                      test::contains("modified by an inplace operation"));
  }
}

TEST_CASE("dropout draws the same on every layout and when a block runs again") {
  torch::manual_seed(3);
  const nn::Sequential module(
      nn::Linear(6, 16), nn::Dropout(0.5),
      nn::Functional([](at::Tensor x) { return at::dropout(x, 0.3, true); }), nn::Linear(16, 2));
  const ModelSpec model = from_sequential(module, squared_error);
  const auto data = batches();
  const Trained expected = train_under({}, {}, model, {data});
  CHECK(difference(expected, plain_training(module, data)) != "");
  for (const auto& [name, config, mesh] : layouts_of_modules()) {
    INFO(name);
    CHECK(difference(train_under(config, mesh, model, {data}), expected) == "");
  }
}

TEST_CASE("a layer that stands twice in a Sequential has one set of weights") {
  torch::manual_seed(3);
  nn::Linear shared(6, 6);
  nn::Sequential module(shared, nn::Tanh(), shared, nn::Tanh(), shared, nn::Linear(6, 2));
  // clone() would untie them, so the plain loop trains the module itself, last.
  const ModelSpec model = from_sequential(module, squared_error);
  const auto data = batches();
  std::vector<std::pair<std::string, Trained>> results;
  for (const auto& [name, config, mesh] : layouts_of_modules()) {
    results.emplace_back(name, train_under(config, mesh, model, {data}));
  }
  Trained expected = train_plain(*module, data, [&](const MicroBatch& batch) {
    return squared_error(module->forward(batch.input_ids), batch);
  });
  for (const char* alias : {"2.weight", "2.bias", "4.weight", "4.bias"})
    expected.weights.erase(alias);
  for (const auto& [name, trained] : results) {
    INFO(name);
    CHECK(difference(trained, expected) == "");
  }
}

TEST_CASE("weights tied inside a module train as one parameter") {
  torch::manual_seed(3);
  const auto module = std::make_shared<TiedNet>();
  const auto loss = [](const at::Tensor& scores, const MicroBatch& batch) {
    return at::cross_entropy_loss(scores.flatten(0, 1), batch.labels.flatten(), {},
                                  at::Reduction::Sum);
  };
  const ModelSpec model = from_module(module, loss);
  std::vector<MicroBatch> data;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor ids = (at::arange(40) * 7 + step).remainder(9).view({8, 5});
    data.push_back(make_micro_batch(ids, (ids * 2 + 1).remainder(9)));
  }
  std::vector<std::pair<std::string, Trained>> results;
  for (const auto& [name, config, mesh] : layouts_of_modules()) {
    if (mesh.pipeline > 1) continue;
    results.emplace_back(name, train_under(config, mesh, model, {data}));
  }
  Trained expected = train_plain(*module, data, [&](const MicroBatch& batch) {
    return loss(module->forward(batch.input_ids), batch);
  });
  for (const char* alias : {"table.weight", "second.weight", "second.bias"}) {
    expected.weights.erase(alias);
  }
  for (const auto& [name, trained] : results) {
    INFO(name);
    CHECK(difference(trained, expected) == "");
  }
}

TEST_CASE("a module in float trains the same where new tensors are double") {
  torch::manual_seed(3);
  const nn::Sequential module(nn::Linear(6, 5), nn::Tanh(), nn::Linear(5, 2));
  const auto data = batches();
  const Trained expected = plain_training(module, data);
  const ModelSpec model = from_sequential(module, squared_error);
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  std::map<std::string, std::string> differences;
  for (const auto& [name, config, mesh] : layouts_of_modules()) {
    try {
      differences[name] = difference(train_under(config, mesh, model, {data}), expected);
    } catch (const std::exception& error) {
      differences[name] = error.what();
    }
  }
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  for (const auto& [name, text] : differences) {
    INFO(name);
    CHECK(text == "");
  }
}
