// SPDX-License-Identifier: MIT
#include "tessera/model/model_spec.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/model/whole_model.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// y = x * weight (or weight alone in the first block).
struct Scale : Block {
  explicit Scale(at::Tensor weight) : weight(std::move(weight)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    return hidden.defined() ? hidden * weight : weight * 1;
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight, false}}; }
  at::Tensor weight;
};

ModelSpec tied_model() {
  ModelSpec spec;
  spec.name = "cube";
  auto own = [](const BuildContext&) {
    return std::make_unique<Scale>(at::full({1}, 3.0).set_requires_grad(true));
  };
  auto alias = [](const BuildContext&) { return std::make_unique<Scale>(tied_placeholder({1})); };
  spec.blocks = {{"a", own}, {"b", own}, {"c", alias}};
  spec.tied = {{"a", "weight", "c", "weight"}};
  return spec;
}

}  // namespace

TEST_CASE("tied parameters share value and gradient") {
  WholeModel model(tied_model(), {});
  REQUIRE(model.parameters().size() == 2);
  model.forward({})[0].backward();
  CHECK(model.parameters()[0].tensor.grad().item<float>() == 18.0f);  // d(a b a)/da = 2ab
  CHECK(model.parameters()[1].tensor.grad().item<float>() == 9.0f);
}

TEST_CASE("a slice keeps the ties that lie inside it") {
  const ModelSpec spec = tied_model();
  CHECK(spec.slice(0, 3).tied.size() == 1);
  CHECK(spec.slice(1, 2).tied.empty());
  CHECK(spec.slice(1, 2).blocks[0].name == "b");
  CHECK_THROWS_AS(spec.slice(2, 2), Error);
  CHECK_THROWS_AS(spec.slice(0, 0), Error);
}

TEST_CASE("block seeds differ between blocks and between seeds") {
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (size_t block = 0; block < 50; ++block) seeds.push_back(block_seed(seed, block));
  }
  std::ranges::sort(seeds);
  CHECK(std::ranges::adjacent_find(seeds) == seeds.end());
}

TEST_CASE("a model without a head has no logits") {
  WholeModel model(tied_model(), {});
  CHECK_THROWS_AS(model.logits({}), Error);
}
