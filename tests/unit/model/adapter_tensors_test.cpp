// SPDX-License-Identifier: MIT
// Parameters and buffers of adapted modules: frozen, tied, constant, running statistics.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <set>

#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tessera/model/whole_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;
namespace nn = torch::nn;

namespace {

at::Tensor squared(const at::Tensor& output, const MicroBatch&) { return output.square().sum(); }

MicroBatch batch_of(const at::Tensor& inputs) { return make_micro_batch(inputs, {}); }

BlockContext training() { return {.training = true}; }

std::vector<std::string> names_of(Block& block) {
  std::vector<std::string> names;
  for (const auto& parameter : block.parameters()) names.push_back(parameter.name);
  return names;
}

// A table tied to the head, registered under its own name.
struct TiedNet : nn::Cloneable<TiedNet> {
  TiedNet() { reset(); }
  void reset() override {
    table = register_module("table", nn::Embedding(7, 4));
    head = register_parameter("head", table->weight);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return at::linear(at::tanh(table->forward(ids)), head);
  }
  nn::Embedding table{nullptr};
  at::Tensor head;
};

// One layer under two names.
struct TwiceNet : nn::Cloneable<TwiceNet> {
  TwiceNet() { reset(); }
  void reset() override {
    first = register_module("first", nn::Linear(4, 4));
    second = register_module("second", first);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(at::tanh(first->forward(x))); }
  nn::Linear first{nullptr}, second{nullptr};
};

template <typename Net>
void check_tied(const std::shared_ptr<Net>& net, const MicroBatch& batch, bool cloned) {
  const auto equal_net = [&] {
    auto other = std::make_shared<Net>();
    const at::NoGradGuard no_grad;
    for (auto& item : other->named_parameters()) {
      item.value().copy_(net->named_parameters()[item.key()]);
    }
    return other;
  };
  const ModelSpec model = cloned ? from_module(net, squared) : from_module(equal_net, squared);
  WholeModel whole(model, {});
  whole.forward(batch, training())[0].backward();
  const at::Tensor expected = squared(net->forward(batch.input_ids), batch);
  net->zero_grad();
  expected.backward();
  std::set<at::TensorImpl*> tensors;
  for (const auto& tensor : net->parameters()) tensors.insert(tensor.unsafeGetTensorImpl());
  REQUIRE(whole.parameters().size() == tensors.size());
  for (const auto& parameter : whole.parameters()) {
    INFO(parameter.name);
    const at::Tensor own = net->named_parameters()[parameter.name];
    CHECK(at::equal(parameter.tensor, own));
    CHECK(at::allclose(parameter.tensor.grad(), own.grad(), 1e-6, 0));
  }
}

struct Positions : nn::Cloneable<Positions> {
  explicit Positions(bool changes = false) : changes_(changes) { reset(); }
  void reset() override {
    table = register_buffer("table", at::linspace(0, 1, 12, at::kDouble).view({4, 3}));
    steps = register_buffer("steps", at::arange(4));
    up = register_module("up", nn::Linear(3, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (changes_) table.mul_(0.5);
    return up->forward(x + table);
  }
  at::Tensor table, steps;
  nn::Linear up{nullptr};
  bool changes_;
};

nn::Sequential with_batch_norm() {
  return nn::Sequential(nn::Linear(3, 5), nn::BatchNorm1d(5), nn::Linear(5, 2));
}

}  // namespace

TEST_CASE("frozen parameters stay frozen in copies and in modules made anew") {
  nn::Sequential net(nn::Linear(3, 5), Pair(nn::Linear(5, 5), nn::Linear(5, 2)));
  net[0]->as<nn::Linear>()->bias.set_requires_grad(false);
  net[1]->named_parameters()["second.weight"].set_requires_grad(false);
  WholeModel copies(from_sequential(net, squared), {});
  WholeModel copy(from_module(net, squared), {});
  for (WholeModel* model : {&copies, &copy}) {
    REQUIRE(model->parameters().size() == 6);
    for (const auto& parameter : model->parameters()) {
      INFO(parameter.name);
      const bool frozen = parameter.name == "0.bias" || parameter.name == "1.second.weight";
      CHECK(parameter.tensor.requires_grad() == !frozen);
      CHECK(parameter.tensor.grad().defined() == !frozen);
    }
    model->forward(batch_of(at::ones({4, 3})), training())[0].backward();
  }
  WholeModel made(from_module([&] { return net.ptr(); }, squared), {});
  CHECK_FALSE(made.parameters()[1].tensor.requires_grad());
}

TEST_CASE("a function that returns a tensor a second time is refused by name") {
  nn::Linear layer(3, 2);
  const ModelSpec model = from_module([layer] { return layer; }, squared);
  model.blocks[0].build({});
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { model.blocks[0].build({}); }),
             contains("block module: parameter \"weight\"") && contains("returned before"));
  const auto anew = from_module([] { return nn::Linear(3, 2); }, squared);
  for (int i = 0; i < 3; ++i) anew.blocks[0].build({});
}

TEST_CASE("memory that the user has a view of is left to the user") {
  nn::Linear layer(3, 2);
  const at::Tensor pretrained = at::ones({2, 3});
  layer->weight.set_data(pretrained.detach());
  const auto block = from_module([layer] { return layer; }, squared).blocks[0].build({});
  block->parameters()[0].tensor.detach().zero_();
  CHECK(pretrained.eq(1).all().item<bool>());
}

TEST_CASE("weights tied inside a module are one parameter") {
  const bool cloned = GENERATE(true, false);
  CAPTURE(cloned);
  check_tied(std::make_shared<TiedNet>(), batch_of(at::arange(6)), cloned);
  check_tied(std::make_shared<TwiceNet>(), batch_of(at::rand({5, 4})), cloned);
}

TEST_CASE("weights tied across children are one parameter") {
  nn::Linear twice(4, 4);
  twice->bias.set_requires_grad(false);
  nn::Sequential net(twice, Pair(twice, nn::Linear(4, 4)), twice);
  const ModelSpec model = from_sequential(net, squared);
  REQUIRE(model.tied.size() == 4);
  CHECK(model.tied[0].owner_block == "0");
  CHECK(model.tied[0].owner_parameter == "weight");
  CHECK(model.tied[0].alias_block == "1");
  CHECK(model.tied[0].alias_parameter == "first.weight");
  WholeModel whole(model, {});
  REQUIRE(whole.parameters().size() == 4);
  const MicroBatch batch = batch_of(at::rand({5, 4}));
  whole.forward(batch, training())[0].backward();
  squared(net->forward(batch.input_ids), batch).backward();
  CHECK(at::allclose(whole.parameters()[0].tensor.grad(), twice->weight.grad(), 1e-6, 0));
  // An alias takes no memory until a strategy gives it its owner's.
  const auto block = model.blocks[2].build({});
  CHECK(block->parameters()[0].tensor.storage().nbytes() == sizeof(float));
  CHECK_FALSE(block->parameters()[1].tensor.requires_grad());
}

TEST_CASE("constant buffers are listed, keep their kind and follow the weights' dtype") {
  const ModelSpec model = from_module(std::make_shared<Positions>(), squared);
  CHECK(model.blocks[0].from_first_rank);
  const auto block = model.blocks[0].build({});
  CHECK(names_of(*block) == std::vector<std::string>{"up.weight", "up.bias"});
  const auto buffers = block->buffers();
  REQUIRE(buffers.size() == 2);
  CHECK(buffers[0].name == "table");
  CHECK(buffers[0].tensor.scalar_type() == at::kFloat);
  CHECK(buffers[0].data_rank == -1);
  CHECK(buffers[1].name == "steps");
  CHECK(buffers[1].tensor.scalar_type() == at::kLong);

  const MicroBatch batch = batch_of(at::rand({5, 4, 3}));
  const at::Tensor exact = block->forward({}, batch, training());
  for (const auto& parameter : block->parameters()) {
    at::Tensor(parameter.tensor).set_data(parameter.tensor.detach().to(at::kBFloat16));
  }
  const double rounded = block->forward({}, batch, training())[0].item<double>();
  CHECK(rounded == Approx(exact[0].item<double>()).epsilon(0.05));
  CHECK(block->buffers()[0].tensor.scalar_type() == at::kFloat);
  // The module sees a strategy's writes to a buffer.
  buffers[0].tensor.fill_(3);
  CHECK(block->forward({}, batch, training())[0].item<double>() != Approx(rounded).epsilon(0.05));
  for (const auto& parameter : block->parameters()) {
    at::Tensor(parameter.tensor).set_data(parameter.tensor.detach().to(at::kFloat));
  }
  buffers[0].tensor.copy_(at::linspace(0, 1, 12).view({4, 3}));
  CHECK(block->forward({}, batch, training())[0].item<double>() ==
        Approx(exact[0].item<double>()).epsilon(0.05));
}

TEST_CASE("a constant that forward() changes is refused by name") {
  const auto block = from_module(std::make_shared<Positions>(true), squared).blocks[0].build({});
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument,
                      [&] {
                        block->forward({}, batch_of(at::rand({5, 4, 3})), training());
                      }),
             contains("block module") && contains("\"table\""));
}

TEST_CASE("running statistics are refused unless a rank's are chosen") {
  const auto refused = from_sequential(with_batch_norm(), squared);
  CHECK_THAT(
      error_of(ErrorCode::kInvalidArgument, [&] { refused.blocks[1].build({}); }),
      contains("block 1") && contains("running_mean") && contains("running_statistics_of_rank"));
  const auto model = from_sequential(with_batch_norm(), squared, {.running_statistics_of_rank = 1});
  const auto block = model.blocks[1].build({});
  REQUIRE(block->buffers().size() == 3);
  for (const Buffer& buffer : block->buffers()) CHECK(buffer.data_rank == 1);
  CHECK(block->buffers()[2].tensor.scalar_type() == at::kLong);
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument,
                      [&] { from_sequential(with_batch_norm(), squared, {-1}); }),
             contains("-1"));
  nn::BatchNorm1d norm(5);
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument,
                      [&] { from_sequential(nn::Sequential(norm, norm), squared, {0}); }),
             contains("blocks 0 and 1"));
}

TEST_CASE("running statistics advance once a micro-batch, as in plain LibTorch") {
  const nn::Sequential net = with_batch_norm();
  const auto model = from_sequential(net, squared, {.running_statistics_of_rank = 0});
  const bool will_recompute = GENERATE(false, true);
  CAPTURE(will_recompute);
  const auto block = model.blocks[1].build({});
  nn::BatchNorm1d plain(5);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor hidden = at::rand({6, 5}).set_requires_grad(true);
    const MicroBatch batch = batch_of(hidden);
    at::Tensor first;
    if (will_recompute) {
      const at::NoGradGuard no_grad;
      first = block->forward(hidden, batch, {.training = true, .will_recompute = true});
    }
    const at::Tensor output = block->forward(hidden, batch, training());
    if (will_recompute) CHECK(at::equal(output, first));
    block->forward(at::rand({6, 5}), batch, {.training = false});
    output.sum().backward();
    CHECK(at::equal(output, plain->forward(hidden)));
  }
  const auto expected = plain->named_buffers();
  for (const Buffer& buffer : block->buffers()) {
    CHECK(at::equal(buffer.tensor, expected[buffer.name]));
  }
}

TEST_CASE("running statistics advance in a training pass without gradients") {
  const auto model = from_sequential(with_batch_norm(), squared, {.running_statistics_of_rank = 0});
  const auto block = model.blocks[1].build({});
  nn::BatchNorm1d plain(5);
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = at::rand({6, 5});
  CHECK(at::equal(block->forward(hidden, batch_of(hidden), training()), plain->forward(hidden)));
  const auto expected = plain->named_buffers();
  for (const Buffer& buffer : block->buffers()) {
    CHECK(at::equal(buffer.tensor, expected[buffer.name]));
  }
}

TEST_CASE("parameters in double precision are refused by name") {
  const auto refusal = [](const nn::Sequential& net) {
    return error_of(ErrorCode::kInvalidArgument, [&] {
      for (const BlockBuilder& block : from_sequential(net, squared).blocks) block.build({});
    });
  };
  nn::Sequential net(nn::Linear(3, 5), nn::Linear(5, 2));
  net[1]->to(at::kDouble);
  CHECK_THAT(refusal(net), contains("block 1") && contains("\"weight\"") &&
                               contains("double precision") && contains("to(torch::kFloat)"));
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const nn::Sequential made(nn::Linear(3, 5));
  const std::string said = refusal(made);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  CHECK_THAT(said, contains("block 0") && contains("set_default_dtype"));
}

TEST_CASE("running statistics do not go with 16-bit weights, constant ones do") {
  const auto rounded = [](Block& block) {
    for (const auto& parameter : block.parameters()) {
      at::Tensor(parameter.tensor).set_data(parameter.tensor.detach().to(at::kBFloat16));
    }
  };
  nn::Sequential net = with_batch_norm();
  auto block = from_sequential(net, squared, {0}).blocks[1].build({});
  rounded(*block);
  const MicroBatch batch = batch_of(at::rand({6, 3}));
  const at::Tensor hidden = at::rand({6, 5});
  CHECK_THAT(
      error_of(ErrorCode::kInvalidArgument, [&] { block->forward(hidden, batch, training()); }),
      contains("running_mean") && contains("eval mode"));

  net[1]->eval();
  block = from_sequential(net, squared).blocks[1].build({});
  const at::Tensor exact = block->forward(hidden, batch, training());
  CHECK(block->buffers()[0].data_rank == -1);
  rounded(*block);
  CHECK(at::allclose(block->forward(hidden, batch, training()).to(at::kFloat), exact, 0.02, 0.02));
  CHECK(at::equal(block->buffers()[0].tensor, at::zeros(5)));
}

TEST_CASE("integer parameters are refused by name, and blocks need no parameters") {
  const auto with_integers = from_module(
      [] {
        auto net = std::make_shared<Positions>();
        net->register_parameter("order", at::arange(3), /*requires_grad=*/false);
        return net;
      },
      squared);
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { with_integers.blocks[0].build({}); }),
             contains("\"order\"") && contains("buffer"));
  const auto block = from_sequential(nn::Sequential(nn::Tanh()), squared).blocks[0].build({});
  CHECK(block->parameters().empty());
  CHECK(block->forward({}, batch_of(at::zeros({2, 2})), training())[0].item<float>() == 0);
}
