// SPDX-License-Identifier: MIT
// Modules whose tensors are also held elsewhere: by the module's copy, another rank, another block.
#include "tests/unit/backends/module_shapes.h"

#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tessera/optim/sgd.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

// Not cloneable: clone() leaves it out.
struct PlainNet : nn::Module {
  PlainNet()
      : up(register_module("up", nn::Linear(6, 5))),
        down(register_module("down", nn::Linear(5, 3))) {
    scale = register_buffer("scale", at::randn({5}));
    up->bias.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down->forward(at::tanh(up->forward(x)) * scale);
  }
  nn::Linear up, down;
  at::Tensor scale;
};

template <typename Derived>
struct User : nn::Cloneable<Derived> {
  at::Tensor forward(const at::Tensor& x) { return static_cast<Derived*>(this)->run(x); }
};

struct HoldsPlain : User<HoldsPlain> {
  HoldsPlain() { reset(); }
  void reset() override { plain = register_module("plain", std::make_shared<PlainNet>()); }
  at::Tensor run(const at::Tensor& x) { return plain->forward(x); }
  std::shared_ptr<PlainNet> plain;
};

struct HoldsPlainMadeOnce : User<HoldsPlainMadeOnce> {
  HoldsPlainMadeOnce() : plain(std::make_shared<PlainNet>()) { reset(); }
  void reset() override { register_module("plain", plain); }
  at::Tensor run(const at::Tensor& x) { return plain->forward(x); }
  std::shared_ptr<PlainNet> plain;
};

struct LayerMadeOnce : User<LayerMadeOnce> {
  LayerMadeOnce() : layer(6, 3) { reset(); }
  void reset() override { register_module("layer", layer); }
  at::Tensor run(const at::Tensor& x) { return layer->forward(x); }
  nn::Linear layer;
};

struct TensorMadeOnce : User<TensorMadeOnce> {
  TensorMadeOnce() : weight(at::randn({3, 6})) { reset(); }
  void reset() override { register_parameter("weight", weight); }
  at::Tensor run(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};

// A head given the embedding's table: its copy holds the original's.
struct Head_ : User<Head_> {
  explicit Head_(at::Tensor tied) : weight(std::move(tied)) { reset(); }
  void reset() override { register_parameter("weight", weight); }
  at::Tensor run(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
struct TiedToChild : User<TiedToChild> {
  TiedToChild() { reset(); }
  void reset() override {
    table = register_module("table", nn::Linear(6, 6));
    head = register_module("head", std::make_shared<Head_>(table->weight));
  }
  at::Tensor run(const at::Tensor& x) { return head->forward(table->forward(x)).narrow(1, 0, 3); }
  nn::Linear table{nullptr};
  std::shared_ptr<Head_> head;
};

struct TiedInReset : User<TiedInReset> {
  TiedInReset() { reset(); }
  void reset() override {
    table = register_module("table", nn::Linear(6, 6));
    weight = register_parameter("weight", table->weight);
  }
  at::Tensor run(const at::Tensor& x) {
    return at::linear(at::tanh(table->forward(x)), weight).narrow(1, 0, 3);
  }
  nn::Linear table{nullptr};
  at::Tensor weight;
};

// Tied by assignment, as in nanoGPT.
struct TiedByAssignment : User<TiedByAssignment> {
  TiedByAssignment() { reset(); }
  void reset() override {
    table = register_module("table", nn::Linear(nn::LinearOptions(6, 6)));
    head = register_module("head", nn::Linear(nn::LinearOptions(6, 6).bias(false)));
    head->weight = table->weight;
  }
  at::Tensor run(const at::Tensor& x) {
    return head->forward(at::tanh(table->forward(x))).narrow(1, 0, 3);
  }
  nn::Linear table{nullptr}, head{nullptr};
};

struct TwoViews : User<TwoViews> {
  TwoViews() { reset(); }
  void reset() override {
    first = register_parameter("first", at::randn({3, 6}));
    second = register_parameter("second", first.detach().view({3, 6}));
  }
  at::Tensor run(const at::Tensor& x) { return at::linear(x, first) + at::linear(x, second); }
  at::Tensor first, second;
};

struct Pretrained : User<Pretrained> {
  Pretrained() { reset(); }
  void reset() override {
    table = register_module("table", nn::Embedding::from_pretrained(at::randn({9, 6})));
    up = register_module("up", nn::Linear(6, 3));
  }
  at::Tensor run(const at::Tensor& x) {
    return up->forward(x + table->forward(at::arange(9)).sum(0));
  }
  nn::Embedding table{nullptr};
  nn::Linear up{nullptr};
};

at::Tensor loss_of(const at::Tensor& output, const MicroBatch& batch) {
  return at::cross_entropy_loss(output, batch.labels, {}, at::Reduction::Sum);
}

using Layers = std::shared_ptr<nn::SequentialImpl>;

template <typename... Children>
Layers layers(Children&&... children) {
  return nn::Sequential(std::forward<Children>(children)...).ptr();
}

struct Shape {
  std::string name;
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;  // the module's, for the plain loop
  std::function<ModelSpec()> model;                      // each rank's
  std::vector<std::string> refusal;       // parts of the message; empty: trains as in LibTorch
  std::vector<std::string> aliases = {};  // names in the module that are aliases of others
  bool several_blocks = false;
  bool same_tensors =
      true;  // compared afterwards: clone() itself replaces layers that reset() does not make
};

template <typename Net>
Shape whole(const std::string& name, std::vector<std::string> refusal,
            std::vector<std::string> aliases = {}) {
  const auto net = std::make_shared<Net>();
  return {name,
          net,
          [net](const at::Tensor& x) { return net->forward(x); },
          [net] { return from_module(net, loss_of); },
          std::move(refusal),
          std::move(aliases)};
}

Shape chain(const std::string& name, const Layers& net, std::vector<std::string> refusal,
            std::vector<std::string> aliases = {}) {
  return {name,
          net,
          [net](const at::Tensor& x) { return net->forward(x); },
          [net] { return from_sequential(net, loss_of); },
          std::move(refusal),
          std::move(aliases),
          /*several_blocks=*/true};
}

void check_shape(const Shape& shape) {
  INFO(shape.name);
  const auto data = rows_with_classes();
  const std::string before = state_of(*shape.module, shape.same_tensors);
  std::vector<std::pair<std::string, Trained>> results;
  for (const auto& [layout, config, mesh] : layouts_of_shapes(shape.several_blocks)) {
    INFO(layout);
    const std::string outcome = within_limit(shape.name + ", " + layout, [&] {
      results.emplace_back(layout, train_under(config, mesh, shape.model, {data, 6}));
      return std::string("trained");
    });
    INFO(outcome);
    for (const std::string& word : shape.refusal) CHECK_THAT(outcome, test::contains(word));
    if (shape.refusal.empty()) CHECK(outcome == "trained");
    CHECK(state_of(*shape.module, shape.same_tensors) == before);
  }
  if (!shape.refusal.empty()) return;
  Trained expected = train_plain(*shape.module, data, [&](const MicroBatch& batch) {
    return loss_of(shape.forward(batch.input_ids), batch);
  });
  for (const std::string& alias : shape.aliases) expected.weights.erase(alias);
  for (const auto& [layout, trained] : results) {
    INFO(layout);
    CHECK(difference(trained, expected) == "");
  }
}

// Error of each rank when it attaches its model.
std::vector<std::string> refusals(int ranks, const std::function<ModelSpec(int)>& model_of_rank) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  within_limit("attach", [&] {
    test::run_ranks(ranks, [&](Communicator& world) {
      messages[static_cast<size_t>(world.rank())] = error_of([&] {
        const Player player(
            world,
            {model_of_rank(world.rank()), {.data = ranks}, {.strategy = "zero3"}, make_sgd({})});
      });
    });
    return std::string();
  });
  return messages;
}

}  // namespace

TEST_CASE("copies of modules have the values of the module") {
  torch::manual_seed(3);
  check_shape(whole<HoldsPlain>("a Cloneable that holds a plain module", {}));
  check_shape(chain("a child that holds a plain module",
                    layers(nn::Linear(6, 6), nn::Tanh(), HoldsPlain()), {}));
  check_shape(whole<Pretrained>("a table that is given its weights", {}));
  check_shape(
      chain("a child that is given its weights", layers(nn::Linear(6, 6), Pretrained()), {}));
}

TEST_CASE("copies that hold the module's own tensors are refused by name") {
  torch::manual_seed(3);
  check_shape(whole<HoldsPlainMadeOnce>("a plain module made by the constructor",
                                        {"block module", "\"plain.up.weight\""}));
  check_shape(
      whole<TensorMadeOnce>("a tensor made by the constructor", {"block module", "\"weight\""}));
  check_shape(whole<TiedToChild>("a child that is given its weight by reset()",
                                 {"block module", "\"head.weight\""}));
  check_shape(chain("a child that holds a plain module made by the constructor",
                    layers(nn::Linear(6, 6), HoldsPlainMadeOnce()),
                    {"block 1", "\"plain.up.weight\""}));
  Shape replaced =
      whole<LayerMadeOnce>("a layer made by the constructor", {"block module", "\"layer.weight\""});
  replaced.same_tensors = false;
  check_shape(replaced);
}

TEST_CASE("ties inside a module and across blocks survive the copy") {
  torch::manual_seed(3);
  check_shape(whole<TiedInReset>("a tie in reset()", {}, {"table.weight"}));
  check_shape(whole<TiedByAssignment>("a tie by assignment", {}, {"head.weight"}));
  nn::Linear table(6, 6), head(nn::LinearOptions(6, 6).bias(false)), end(6, 3);
  head->weight = table->weight;
  check_shape(chain("a tie by assignment across blocks",
                    layers(table, nn::Tanh(), head, nn::Tanh(), end), {}, {"2.weight"}));
  nn::Linear twice(6, 6);
  check_shape(chain("a layer that stands twice", layers(twice, nn::Tanh(), twice, nn::Linear(6, 3)),
                    {}, {"2.weight", "2.bias"}));
}

TEST_CASE("parameters that share memory without being one tensor are refused by name") {
  torch::manual_seed(3);
  check_shape(whole<TwoViews>("two views in a module",
                              {"block module", "\"first\"", "\"second\"", "share memory"}));
  nn::Linear first(6, 6), second(6, 6);
  second->weight.set_data(first->weight.detach());
  check_shape(chain("two views across blocks", layers(first, second, nn::Linear(6, 3)),
                    {"block 0", "block 1", "\"weight\"", "share memory"}));
}

TEST_CASE("a tensor that several ranks would hold is refused on every rank") {
  torch::manual_seed(3);
  const bool one_model = GENERATE(true, false);
  CAPTURE(one_model);
  const auto net = std::make_shared<PlainNet>();
  const auto from_same = [&, spec = from_module([net] { return net; }, loss_of)] {
    return one_model ? spec : from_module([net] { return net; }, loss_of);
  };
  for (const int ranks : {2, 3}) {
    const std::string before = state_of(*net);
    for (const std::string& message : refusals(ranks, [&](int) { return from_same(); })) {
      for (const std::string word : {"module", "\"up.weight\""}) {
        CHECK_THAT(message, test::contains(word));
      }
    }
    CHECK(state_of(*net) == before);
  }
}

TEST_CASE("a tensor of a module that only some ranks share is refused on every rank") {
  const auto shared = std::make_shared<nn::LinearImpl>(6, 3);
  const auto of_rank = [&](int rank) {
    return from_module([=] { return rank == 0 ? std::make_shared<nn::LinearImpl>(6, 3) : shared; },
                       loss_of);
  };
  for (const std::string& message : refusals(3, of_rank)) {
    CHECK_THAT(message, test::contains("block \"module\": parameter \"weight\"") &&
                            test::contains("ranks 1 and 2"));
  }
}

TEST_CASE("what one rank cannot build is refused on every rank") {
  const auto of_rank = [](int rank) {
    return from_module(
        [rank] {
          TORCH_CHECK(rank != 1, "the file is not here");
          return nn::Linear(6, 3);
        },
        loss_of);
  };
  for (const std::string& message : refusals(3, of_rank)) {
    CHECK_THAT(message,
               test::contains("block module") && test::contains("failed: the file is not here"));
  }
}
