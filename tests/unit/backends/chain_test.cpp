// SPDX-License-Identifier: MIT
// Models of several blocks from torch modules: chain(), tie(), tuples between blocks.
#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/unit/backends/strangers.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

at::Tensor token_loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores.flatten(0, 1), batch.labels.flatten());
}

struct Embed : nn::Module {
  at::Tensor forward(const at::Tensor& tokens) {
    return wte->forward(tokens) + wpe->forward(at::arange(tokens.size(1)));
  }
  nn::Embedding wte{register_module("wte", nn::Embedding(11, 8))};
  nn::Embedding wpe{register_module("wpe", nn::Embedding(5, 8))};
};
struct Layer : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm->forward(x);
    const at::Tensor mixed = at::softmax(y.matmul(y.transpose(1, 2)), -1).matmul(y);
    return x + up->forward(at::gelu(mixed));
  }
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})))};
  nn::Linear up{register_module("up", nn::Linear(8, 8))};
};

// nanoGPT: head and embedding are tied.
struct NanoGpt : nn::Module {
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = second->forward(first->forward(embed->forward(tokens)));
    return at::linear(x, embed->wte->weight);
  }
  std::shared_ptr<Embed> embed{register_module("0", std::make_shared<Embed>())};
  std::shared_ptr<Layer> first{register_module("1", std::make_shared<Layer>())};
  std::shared_ptr<Layer> second{register_module("2", std::make_shared<Layer>())};
};

std::vector<MicroBatch> tokens() {
  return two_steps([](const at::Generator& g) {
    const at::Tensor ids = at::randint(11, {12, 5}, g, at::kLong);
    at::Tensor labels = ids.roll(-1, 1);
    labels.masked_fill_(at::rand(labels.sizes(), g) < 0.3, kIgnoredLabel);
    return make_micro_batch(ids, labels);
  });
}

template <typename M>
auto as_is(const std::shared_ptr<M>& module) {
  return with_values([] { return std::make_shared<M>(); }, module);
}

// A Sequential in the middle.
struct Sandwich : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down->forward(middle->forward(up->forward(x))); }
  nn::Linear up{register_module("0", nn::Linear(6, 5))};
  nn::Sequential middle{register_module(
      "1", nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({5})), nn::Linear(5, 5)))};
  nn::Linear down{register_module("2", nn::Linear(5, 3))};
};

struct Stack : nn::Module {
  Stack() {
    layers->push_back(std::make_shared<Layer>());
    layers->push_back(std::make_shared<Layer>());
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = wte->forward(tokens);
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head->forward(x);
  }
  nn::Embedding wte{register_module("wte", nn::Embedding(11, 8))};
  nn::ModuleList layers{register_module("layers", nn::ModuleList())};
  nn::Linear head{register_module("head", nn::Linear(8, 11))};
};

// A decoder's memory and state cross the stages together.
struct Encoder : nn::Module {
  at::Tensor forward(const at::Tensor& source) { return at::tanh(table->forward(source)); }
  nn::Embedding table{register_module("table", nn::Embedding(11, 8))};
};
struct Decoder : nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& memory, const at::Tensor& state) {
    const at::Tensor q = query->forward(state);
    return {memory, state + at::softmax(q.matmul(memory.transpose(1, 2)), -1).matmul(memory)};
  }
  nn::Linear query{register_module("query", nn::Linear(8, 8))};
};
struct Translation : nn::Module {
  std::shared_ptr<Encoder> encoder{register_module("0", std::make_shared<Encoder>())};
  std::shared_ptr<Encoder> target{register_module("1", std::make_shared<Encoder>())};
  std::shared_ptr<Decoder> first{register_module("2", std::make_shared<Decoder>())};
  std::shared_ptr<Decoder> second{register_module("3", std::make_shared<Decoder>())};
  nn::Linear head{register_module("4", nn::Linear(8, 11))};
};

// Lengths, and so shapes between stages, differ by step.
std::vector<MicroBatch> translated_rows() {
  int64_t length = 2;
  return two_steps([&](const at::Generator& g) {
    const at::Tensor target = at::randint(11, {12, length}, g, at::kLong);
    ++length;
    return make_micro_batch(at::randint(11, {12, 3}, g, at::kLong), target.roll(-1, 1),
                            {{"target", target}});
  });
}

ModelSpec translation(const std::shared_ptr<Translation>& net) {
  return chain({block_of(as_is(net->encoder)),
                block_of(as_is(net->target),
                         [](Encoder& target, const at::Tensor& memory, const MicroBatch& batch) {
                           return std::tuple(memory, target.forward(batch.get("target")));
                         }),
                block_of(as_is(net->first)), block_of(as_is(net->second)),
                block_of(net->head,
                         [](nn::LinearImpl& head, const at::Tensor& memory, const at::Tensor& state,
                            const MicroBatch&) { return std::pair(memory, head.forward(state)); })},
               [](const at::Tensor& memory, const at::Tensor& scores, const MicroBatch& batch) {
                 return token_loss(scores, batch) + 0.1 * memory.square().mean();
               },
               {.reduction = LossReduction::kMean});
}

}  // namespace

TEST_CASE("a nanoGPT with a tied head as blocks") {
  check_program<NanoGpt>(
      "nanoGPT", tokens(),
      [](NanoGpt& net, const MicroBatch& batch) {
        return token_loss(net.forward(batch.input_ids), batch);
      },
      [](const std::shared_ptr<NanoGpt>& net) {
        const auto head = [] { return nn::Linear(nn::LinearOptions(8, 11).bias(false)); };
        const ModelSpec model = chain({block_of(as_is(net->embed)), block_of(as_is(net->first)),
                                       block_of(as_is(net->second)), block_of(head)},
                                      token_loss, {.reduction = LossReduction::kMean});
        return tie(model, "0.wte.weight", "3.weight");
      },
      {.blocks = true});
}

TEST_CASE("a Sequential as several blocks of a chain") {
  const auto loss = [](const at::Tensor& scores, const MicroBatch& batch) {
    return F::cross_entropy(scores, batch.labels);
  };
  check_program<Sandwich>(
      "sandwich", rows_with_classes(),
      [=](Sandwich& net, const MicroBatch& batch) {
        return loss(net.forward(batch.input_ids), batch);
      },
      [=](const std::shared_ptr<Sandwich>& net) {
        return chain(
            {block_of(net->up), from_sequential(net->middle, nullptr), block_of(net->down)}, loss,
            {.reduction = LossReduction::kMean});
      },
      {.blocks = true});
}

TEST_CASE("children of a module by name as blocks") {
  check_program<Stack>(
      "children", tokens(),
      [](Stack& net, const MicroBatch& batch) {
        return token_loss(net.forward(batch.input_ids), batch);
      },
      [](const std::shared_ptr<Stack>& net) {
        return from_children<Layer>(as_is(net), {"wte", "layers.0", "layers.1", "head"}, token_loss,
                                    {.reduction = LossReduction::kMean});
      },
      {.blocks = true});
  const auto refusal = [](const std::vector<std::string>& names) {
    return error_of(ErrorCode::kInvalidArgument,
                    [&] { from_children(as_is(std::make_shared<Stack>()), names, token_loss); });
  };
  CHECK_THAT(refusal({"wte", "layers.2"}), test::contains("has no child \"layers.2\""));
  CHECK_THAT(refusal({"wte", "layers.0", "layers.1", "head"}),
             test::contains("child \"layers.0\" is a") && test::contains("name its class"));
  CHECK_THAT(refusal({"wte", "head"}),
             test::contains("parameter \"layers.0.norm.weight\"") && test::contains("none of"));
}

TEST_CASE("an encoder-decoder as blocks that pass two tensors") {
  check_program<Translation>("translation", translated_rows(),
                             [](Translation& net, const MicroBatch& batch) {
                               at::Tensor memory = net.encoder->forward(batch.input_ids);
                               at::Tensor state = net.target->forward(batch.get("target"));
                               std::tie(memory, state) = net.first->forward(memory, state);
                               std::tie(memory, state) = net.second->forward(memory, state);
                               return token_loss(net.head->forward(state), batch) +
                                      0.1 * memory.square().mean();
                             },
                             translation, {.blocks = true});
}

TEST_CASE("tuples and second inputs in bf16") {
  const auto net = std::make_shared<Translation>();
  const auto losses = [&](at::ScalarType dtype) {
    ParallelConfig config{.strategy = "zero2"};
    config.precision.parameter = dtype;
    return train_under(config, {.pipeline = 2, .data = 2}, translation(net), {translated_rows(), 4})
        .losses;
  };
  const std::vector<double> wide = losses(at::kFloat), narrow = losses(at::kBFloat16);
  for (size_t i = 0; i < wide.size(); ++i) CHECK(std::abs(narrow[i] - wide[i]) < 0.02 * wide[i]);
}

TEST_CASE("class weights in a pipeline") {
  const at::Tensor weights = at::rand({11}) + 0.1;
  const auto sum = [=](const at::Tensor& scores, const MicroBatch& batch) -> LossResult {
    const at::Tensor labels = batch.labels.flatten();
    return {F::cross_entropy(scores.flatten(0, 1), labels,
                             F::CrossEntropyFuncOptions().weight(weights).reduction(torch::kSum)),
            (weights.index_select(0, labels.clamp_min(0)) * labels.ne(kIgnoredLabel)).sum()};
  };
  check_program<NanoGpt>(
      "weights", tokens(),
      [=](NanoGpt& net, const MicroBatch& batch) {
        return F::cross_entropy(net.forward(batch.input_ids).flatten(0, 1), batch.labels.flatten(),
                                F::CrossEntropyFuncOptions().weight(weights));
      },
      [=](const std::shared_ptr<NanoGpt>& net) {
        const auto head = [] { return nn::Linear(nn::LinearOptions(8, 11).bias(false)); };
        return tie(chain({block_of(as_is(net->embed)), block_of(as_is(net->first)),
                          block_of(as_is(net->second)), block_of(head)},
                         sum),
                   "0.wte.weight", "3.weight");
      },
      {.blocks = true});
}

TEST_CASE("chains and ties that do not fit are refused") {
  const auto refusal = [](auto make) { return error_of(ErrorCode::kInvalidArgument, make); };
  const nn::Linear linear(8, 8);
  const auto decoder = std::make_shared<Decoder>();
  const auto loss = [](const at::Tensor& x, const MicroBatch&) { return x.sum(); };
  CHECK_THAT(refusal([&] { chain({}, loss); }), test::contains("no parts"));
  CHECK_THAT(refusal([&] {
               chain({block_of(linear), block_of(as_is(decoder))}, loss);
             }),
             test::contains("block 0 returns 1 tensor, but block 1 takes 2 tensors"));
  CHECK_THAT(refusal([&] { chain({block_of(as_is(decoder))}, loss); }),
             test::contains("block 0 is the first and takes 2 tensors"));
  CHECK_THAT(refusal([&] {
               chain(
                   {block_of(linear, [](nn::LinearImpl& l, const at::Tensor& x,
                                        const MicroBatch&) { return std::pair(l.forward(x), x); })},
                   loss);
             }),
             test::contains("block 0 returns 2 tensors, but the loss takes 1 tensor"));
  CHECK_THAT(refusal([&] { chain({from_module(linear, loss)}, loss); }),
             test::contains("part 0 returns a loss"));
  const ModelSpec model = chain({block_of(linear), block_of(nn::Linear(8, 4))}, loss);
  CHECK_THAT(refusal([&] { tie(model, "0.weight", "7.weight"); }),
             test::contains("\"7.weight\" is no parameter"));
  CHECK_THAT(refusal([&] { tie(model, "0.weight", "0.bias"); }), test::contains("one block"));
  const auto train = [&](const ModelSpec& tied) {
    return within_limit("ties", [&] {
      train_under({.strategy = "ddp"}, {.data = 2}, tied, {rows_with_numbers(), 4});
      return "trained";
    });
  };
  CHECK_THAT(train(tie(model, "0.weight", "1.weight")), test::contains("differ in shape"));
  CHECK_THAT(train(tie(model, "0.weigth", "1.weight")), test::contains("0.weigth"));
  const ModelSpec integral =
      chain({block_of(nn::Linear(6, 8),
                      [](nn::LinearImpl& l, const at::Tensor& x, const MicroBatch&) {
                        return std::pair(l.forward(x), x.gt(0));
                      })},
            [](const at::Tensor& x, const at::Tensor&, const MicroBatch&) { return x.sum(); });
  CHECK_THAT(train(integral), test::contains("block 0: tensor 1 of those it returns is Bool"));
}
