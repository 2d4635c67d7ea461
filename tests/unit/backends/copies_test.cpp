// SPDX-License-Identifier: MIT
// Weights copied from a strategy to a plain module and back.
#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/backends/copy_weights.h"
#include "tessera/model/callable.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/watchdog.hpp"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

// A tied pair, a running statistic, odd sizes.
struct Net : nn::Module {
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = table->forward(tokens);
    x = norm->forward(x.flatten(0, 1)).view_as(x);
    return at::linear(at::tanh(up->forward(x)), table->weight);
  }
  nn::Embedding table{register_module("table", nn::Embedding(11, 7))};
  nn::BatchNorm1d norm{register_module("norm", nn::BatchNorm1d(7))};
  nn::Linear up{register_module("up", nn::Linear(7, 7))};
};

at::Tensor loss_of(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores.flatten(0, 1), batch.labels.flatten(),
                          F::CrossEntropyFuncOptions().reduction(torch::kSum));
}

MicroBatch tokens(int rank) {
  const at::Tensor ids = (at::arange(20).view({4, 5}) * 7 + 3 * rank).remainder(11);
  return make_micro_batch(ids, ids.roll(1, 1));
}

const std::vector<std::string> kCopyLayouts{
    "strategy=single",
    "strategy=ddp data=2",
    "strategy=zero2 data=2",
    "strategy=zero3 data=3 persistence_threshold=8",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero1 data=2 offload=optimizer offload_step=both",
};

std::map<std::string, at::Tensor> values_of(const nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value();
  return values;
}

void require_same(const nn::Module& a, const nn::Module& b) {
  const auto theirs = values_of(b);
  for (const auto& [name, value] : values_of(a)) {
    test::require(value.equal(theirs.at(name)), name, " differs");
  }
}

std::shared_ptr<Net> made(uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

}  // namespace

TEST_CASE("weights go to a module and come back, whole, under every layout") {
  const auto first = made(3), second = made(4);
  const auto model = from_module(with_values([] { return std::make_shared<Net>(); }, first),
                                 loss_of, {.running_statistics_of_rank = 0});
  for (const std::string& line : kCopyLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    std::vector<std::shared_ptr<Net>> mine;
    for (int rank = 0; rank < layout.ranks(); ++rank) mine.push_back(made(100 + rank));
    play({.model = model,
          .mesh = layout.mesh,
          .parallel = layout.parallel,
          .optimizer = make_sgd({})},
         [&](Player& player) {
           Strategy& s = player.strategy();
           const auto net = mine[static_cast<size_t>(player.rank())];
           copy_to(s, net.get());
           require_same(*net, *first);
           s.forward_backward(std::vector{tokens(player.data_rank())});
           s.optimizer_step(0.5);
           // Only rank 0 passes a module.
           copy_to(s, player.rank() == 0 ? net.get() : nullptr);
           test::require(net->up->weight.equal(first->up->weight) == (player.rank() != 0),
                         "only rank 0 has the trained weights");
           copy_from(s, player.rank() == 0 ? second.get() : nullptr, player.world());
           copy_to(s, net.get());
           require_same(*net, *second);
           // Forward uses them.
           const MicroBatch batch = tokens(player.data_rank());
           second->eval();
           const at::Tensor expected = second->forward(batch.input_ids);
           const at::Tensor scores = s.predict(std::vector{batch}).front();
           test::require(at::allclose(scores, expected, 1e-5, 1e-6), "scores are of other weights");
         });
  }
}

TEST_CASE("blocks and stages have their names, and names of one's own") {
  const auto body = std::make_shared<nn::SequentialImpl>(nn::Linear(4, 5), nn::Linear(5, 3));
  const ModelSpec model = from_sequential(body, [](const at::Tensor& output,
                                                   const MicroBatch& batch) {
    return F::mse_loss(output, batch.labels, F::MSELossFuncOptions().reduction(torch::kSum)) / 3;
  });
  const FuzzCase layout = parse_case("strategy=zero1 pipeline=2 data=2");
  play(
      {.model = model, .mesh = layout.mesh, .parallel = layout.parallel, .optimizer = make_sgd({})},
      [&](Player& player) {
        torch::nn::Sequential other(nn::Linear(4, 5), nn::Linear(5, 3));
        copy_to(player.strategy(), other.ptr().get());
        require_same(*other, *body);
        const at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : other->parameters()) parameter.mul_(2);
        copy_from(player.strategy(), other.ptr().get(), player.world());
        torch::nn::Sequential third;
        third->push_back("in", nn::Linear(4, 5));
        third->push_back("out", nn::Linear(5, 3));
        copy_to(player.strategy(), third.ptr().get(),
                {.name = [](const std::string& block, const std::string& parameter) {
                  return (block == "0" ? "in." : "out.") + parameter;
                }});
        test::require(third->parameters()[2].equal(body->parameters()[2] * 2), "twice the first");
      });
}

namespace {

std::vector<at::Tensor> flat(const nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : module.parameters()) {
    all.push_back(parameter.detach().flatten());
  }
  return all;
}

}  // namespace

TEST_CASE("a module that does not fit is refused by the name that is missing") {
  const auto first = made(3);
  const auto model = from_module(with_values([] { return std::make_shared<Net>(); }, first),
                                 loss_of, {.running_statistics_of_rank = 0});
  play({.model = model, .mesh = {.data = 2}, .parallel = {.strategy = "zero2"}},
       [&](Player& player) {
         Strategy& s = player.strategy();
         const auto refused = [](const std::string& says, const std::function<void()>& call) {
           const std::string said = test::require_error(ErrorCode::kInvalidArgument, call, says);
           test::require(said.find(says) != std::string::npos, "it says: ", said);
         };
         nn::Sequential empty, larger;
         larger->push_back("x", nn::Linear(7, 7));
         refused("copy_to: the module has no \"", [&] { copy_to(s, larger.ptr().get()); });
         refused("rank 0 gave no module", [&] { copy_from(s, nullptr, player.world()); });
         refused("copy_from: the module has no \"",
                 [&] { copy_from(s, larger.ptr().get(), player.world()); });
         struct More : Net {
           nn::Linear extra{register_module("extra", nn::Linear(1, 1))};
         } more;
         refused("the model has no parameter for the module's \"extra.bias\"",
                 [&] { copy_from(s, &more, player.world()); });
         const at::Tensor before = at::cat(flat(more));
         refused("the model has no parameter for the module's \"extra.bias\"",
                 [&] { copy_to(s, &more); });
         test::require(at::cat(flat(more)).equal(before), "a refused copy has written");
         struct Wider : nn::Module {
           nn::Embedding table{register_module("table", nn::Embedding(11, 9))};
         } wider;
         refused("has shape [11, 9] in the module and [11, 7] in the model",
                 [&] { copy_to(s, &wider); });
         copy_to(s, made(1).get());
       });
}
