// SPDX-License-Identifier: MIT
#include "tessera/model/adapters.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "tessera/core/error.h"
#include "tessera/model/whole_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

// A user's module: not cloneable, with a submodule of its own.
struct Net : nn::Module {
  explicit Net(int64_t width)
      : up(register_module("up", nn::Linear(3, width))),
        down(register_module("down", nn::Linear(width, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return down->forward(at::tanh(up->forward(x))); }
  nn::Linear up, down;
};

MicroBatch small_batch() {
  return make_micro_batch(at::arange(12, at::kFloat).reshape({4, 3}) / 10, at::ones({4, 2}));
}

struct NamedSource : TensorSource {
  bool has(const std::string&) const override { return true; }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    names.push_back(name);
    return at::full(shape, 0.5, at::kBFloat16);
  }
  mutable std::vector<std::string> names;
};

}  // namespace

TEST_CASE("a module given by its maker draws the same weights for the same seed") {
  const auto spec = from_module([] { return std::make_shared<Net>(5); }, squared_error);
  CHECK(spec.block_count() == 1);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  WholeModel a(spec, {.seed = 1}), b(spec, {.seed = 1}), c(spec, {.seed = 2});
  CHECK(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
  REQUIRE(a.parameters().size() == 4);
  CHECK(a.parameters()[0].name == "up.weight");
  CHECK(a.parameters()[3].name == "down.bias");
  CHECK(a.parameters()[0].weight_decay);
  CHECK_FALSE(a.parameters()[3].weight_decay);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(at::equal(a.parameters()[i].tensor, b.parameters()[i].tensor));
    CHECK_FALSE(at::equal(a.parameters()[i].tensor, c.parameters()[i].tensor));
    CHECK(a.parameters()[i].tensor.data_ptr() != b.parameters()[i].tensor.data_ptr());
  }
}

TEST_CASE("an adapted module computes what the module computes, with its gradients") {
  nn::Sequential net(nn::Linear(3, 5), nn::Functional(at::tanh), nn::Linear(5, 2));
  const auto spec = from_sequential(net, squared_error);
  REQUIRE(spec.block_count() == 3);
  CHECK(spec.blocks[2].name == "2");
  WholeModel model(spec, {});
  const MicroBatch batch = small_batch();
  const at::Tensor loss = model.forward(batch);
  REQUIRE(loss.dim() == 1);
  loss[0].backward();

  const at::Tensor expected = squared_error(net->forward(batch.input_ids), batch);
  expected.backward();
  CHECK(loss[0].item<float>() == expected.item<float>());
  const auto own = net->named_parameters();
  REQUIRE(model.parameters().size() == own.size());
  for (const auto& parameter : model.parameters()) {
    CHECK(at::equal(parameter.tensor.grad(), own[parameter.name].grad()));
    CHECK(parameter.tensor.data_ptr() != own[parameter.name].data_ptr());
  }
}

TEST_CASE("a cloneable module can be given itself") {
  nn::Linear linear(3, 2);
  const auto spec = from_module(linear, squared_error);
  WholeModel first(spec, {.seed = 1}), second(spec, {.seed = 2});
  for (auto* model : {&first, &second}) {
    CHECK(at::equal(model->parameters()[0].tensor, linear->weight));
    CHECK(model->parameters()[0].tensor.data_ptr() != linear->weight.data_ptr());
  }
}

TEST_CASE("adapted modules run in the dtype of their weights and give the loss in fp32") {
  nn::Sequential net(nn::Linear(3, 2));
  const auto spec = from_sequential(net, squared_error);
  WholeModel model(spec, {});
  for (const auto& parameter : model.parameters()) {
    parameter.tensor.set_data(parameter.tensor.detach().to(at::kBFloat16));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor loss = model.forward(small_batch());
  CHECK(loss.scalar_type() == at::kFloat);
  const float exact =
      squared_error(net->forward(small_batch().input_ids), small_batch()).item<float>();
  CHECK(loss[0].item<float>() == Approx(exact).epsilon(0.05));
}

TEST_CASE("weights come from the source under the names of the module") {
  NamedSource source;
  WholeModel whole(from_module([] { return std::make_shared<Net>(5); }, squared_error),
                   {.source = &source});
  CHECK(source.names ==
        std::vector<std::string>{"up.weight", "up.bias", "down.weight", "down.bias"});
  CHECK(whole.parameters()[0].tensor.eq(0.5).all().item<bool>());
  CHECK(whole.parameters()[0].tensor.scalar_type() == at::kFloat);
  source.names.clear();
  WholeModel split(from_sequential(nn::Sequential(nn::Linear(3, 2)), squared_error),
                   {.source = &source});
  CHECK(source.names == std::vector<std::string>{"0.weight", "0.bias"});
}

TEST_CASE("a Sequential needs modules") {
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument,
                      [&] { from_sequential(nn::Sequential(), squared_error); }),
             test::contains("no modules"));
}
