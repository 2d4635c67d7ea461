// SPDX-License-Identifier: MIT
// Parameters with fp32 moments for any optimizer setting: embeddings of users' modules, and those
// set by groups.
#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <set>

#include "tessera/model/adapters.h"
#include "tessera/model/parameter_groups.h"
#include "tessera/model/tensor_parallel.h"
#include "tests/support/test.hpp"

using namespace tessera;
namespace nn = torch::nn;

namespace {

using Names = std::set<std::string>;

at::Tensor loss_of(const at::Tensor& scores, const MicroBatch&) { return scores.square().sum(); }

Names in_fp32(const ModelSpec& model) {
  Names names;
  for (const BlockBuilder& builder : model.blocks) {
    const auto block = builder.build({.seed = 1});
    for (const Parameter& parameter : builder.parameters_of(*block)) {
      if (parameter.fp32_state) names.insert(builder.name + "." + parameter.name);
    }
  }
  return names;
}

struct TablesNet : nn::Cloneable<TablesNet> {
  TablesNet() { reset(); }
  void reset() override {
    bag = register_module("bag", nn::EmbeddingBag(5, 4));
    places = register_module("places", nn::Embedding(5, 4));
    up = register_module("up", nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return up(bag(x) + places(x).sum(1)); }
  nn::EmbeddingBag bag = nullptr;
  nn::Embedding places = nullptr;
  nn::Linear up = nullptr;
};

}  // namespace

TEST_CASE("tables of torch modules have their moments in fp32") {
  nn::Sequential layers(nn::Embedding(7, 4), nn::Linear(4, 4), nn::Linear(4, 7));
  CHECK(in_fp32(from_sequential(layers, loss_of)) == Names{"0.weight"});
  CHECK(in_fp32(from_module(std::make_shared<TablesNet>(), loss_of)) ==
        Names{"module.bag.weight", "module.places.weight"});
  // A weight that is an embedding in another block, in either order.
  nn::Embedding table(4, 4);
  nn::Linear head(4, 4);
  head->weight = table->weight;
  CHECK(in_fp32(from_sequential(nn::Sequential(table, nn::Linear(4, 4), head), loss_of)) ==
        Names{"0.weight", "2.weight"});
  nn::Linear first(4, 4);
  nn::Embedding second(4, 4);
  second->weight = first->weight;
  CHECK(in_fp32(from_sequential(nn::Sequential(first, second), loss_of)) ==
        Names{"0.weight", "1.weight"});
}

TEST_CASE("a group says whether its moments are in fp32") {
  const ModelSpec model =
      from_sequential(nn::Sequential(nn::Embedding(7, 4), nn::Linear(4, 4)), loss_of);
  CHECK(in_fp32(with_groups(model, {{.name = "a", .matches = named("0"), .lr_factor = 2}})) ==
        Names{"0.weight"});
  CHECK(in_fp32(with_groups(model, {{.name = "a", .matches = named("0"), .fp32_state = false},
                                    {.name = "b", .matches = named("1"), .fp32_state = true}})) ==
        Names{"1.bias", "1.weight"});
  CHECK_THROWS(with_groups(
      model, {{.name = "a", .matches = named("0"), .fp32_state = true, .frozen = true}}));
}

TEST_CASE("a table that is cut over a tensor axis has its moments in fp32") {
  const VocabParallelEmbedding table({}, "words", at::ones({6, 4}));
  CHECK(table.parameters().front().fp32_state);
}
