// SPDX-License-Identifier: MIT
// Random draws and modes of adapted modules.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <thread>

#include "tessera/core/error.h"
#include "tessera/model/callable.h"
#include "tessera/model/whole_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
namespace nn = torch::nn;

namespace {

at::Tensor sum_of(const at::Tensor& output, const MicroBatch&) { return output.sum(); }

std::unique_ptr<Block> child_of(const nn::Sequential& module, size_t index) {
  return from_sequential(module, sum_of).blocks[index].build({});
}

MicroBatch some_batch() { return make_micro_batch(at::ones({64, 3}), {}); }

BlockContext training(uint64_t seed) { return {.seed = seed, .training = true}; }

at::Tensor global_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// Draws random numbers without being a Dropout.
struct Noise : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + at::rand_like(x); }
};

}  // namespace

TEST_CASE("dropout follows the micro-batch, with and without gradients") {
  const auto block = child_of(nn::Sequential(nn::Dropout(0.5), nn::Linear(3, 2)), 0);
  const MicroBatch batch = some_batch();
  const at::Tensor first = block->forward({}, batch, training(5));
  CHECK(first.eq(0).any().item<bool>());
  {
    const at::NoGradGuard no_grad;
    CHECK(at::equal(block->forward({}, batch, training(5)), first));
  }
  CHECK(at::equal(block->forward({}, batch, {.seed = 5}), batch.input_ids));
  CHECK(at::equal(block->forward({}, batch, training(5)), first));
}

TEST_CASE("a block draws from the micro-batch's seed and its place, and from nothing else") {
  const nn::Sequential module(nn::Dropout(0.5), nn::Dropout(0.5), nn::Linear(3, 2));
  const auto first = child_of(module, 0), second = child_of(module, 1);
  const MicroBatch batch = some_batch();
  const at::Tensor state = global_state();
  const at::Tensor drawn = first->forward({}, batch, training(5));
  CHECK(at::equal(global_state(), state));
  at::rand({7});
  CHECK(at::equal(first->forward({}, batch, training(5)), drawn));
  CHECK_FALSE(at::equal(first->forward({}, batch, training(6)), drawn));
  CHECK_FALSE(at::equal(second->forward(batch.input_ids, batch, training(5)), drawn));

  torch::manual_seed(block_seed(5, 0));
  CHECK(at::equal(at::dropout(batch.input_ids, 0.5, true), drawn));
}

TEST_CASE("modules of unknown type and losses draw from the seed as well, also in evaluations") {
  const auto model = from_module(
      [] { return std::make_shared<Noise>(); },
      [](const at::Tensor& output, const MicroBatch&) { return (output + at::rand({1})).sum(); });
  const auto block = model.blocks[0].build({});
  const at::Tensor state = global_state();
  const MicroBatch batch = some_batch();
  for (const bool training : {true, false}) {
    const BlockContext five{.seed = 5, .training = training}, six{.seed = 6, .training = training};
    const at::Tensor loss = block->forward({}, batch, five);
    CHECK(at::equal(block->forward({}, batch, five), loss));
    CHECK_FALSE(at::equal(block->forward({}, batch, six), loss));
  }
  CHECK(at::equal(global_state(), state));
}

TEST_CASE("ranks that are threads draw what each would draw alone") {
  constexpr uint64_t kRanks = 4, kPasses = 500;
  const nn::Sequential module(nn::Dropout(0.5), nn::Linear(3, 2));
  std::vector<at::Tensor> alone(kRanks), together(kRanks);
  const auto passes = [&](uint64_t rank, std::vector<at::Tensor>& results) {
    const auto block = child_of(module, 0);
    std::vector<at::Tensor> outputs;
    for (uint64_t i = 0; i < kPasses; ++i) {
      outputs.push_back(block->forward({}, some_batch(), training(rank * kPasses + i)));
    }
    results[rank] = at::stack(outputs);
  };
  for (uint64_t rank = 0; rank < kRanks; ++rank) passes(rank, alone);
  std::vector<std::thread> threads;
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { passes(rank, together); });
  }
  for (auto& thread : threads) thread.join();
  for (uint64_t rank = 0; rank < kRanks; ++rank) CHECK(at::equal(together[rank], alone[rank]));
}

TEST_CASE("building a model leaves the user's random numbers alone") {
  const nn::Sequential module(nn::Linear(3, 2));
  const at::Tensor state = global_state();
  child_of(module, 0);
  CHECK(at::equal(global_state(), state));
}

TEST_CASE("modules in eval mode inside a module in training mode stay so") {
  nn::Sequential module(nn::Dropout(0.5), nn::Linear(3, 2));
  module[0]->eval();
  const MicroBatch batch = some_batch();
  CHECK(at::equal(child_of(module, 0)->forward({}, batch, training(5)), batch.input_ids));
  module->eval();  // the whole model: it was in eval mode before
  CHECK_FALSE(at::equal(child_of(module, 0)->forward({}, batch, training(5)), batch.input_ids));
}

TEST_CASE("an error of a user's function is one line with the block's name, and the user's") {
  const auto message = [](const std::function<void()>& users) {
    nn::Functional layer([users](const at::Tensor& x) {
      users();
      return x;
    });
    const auto block = child_of(nn::Sequential(nn::Linear(3, 2), layer), 1);
    return error_of(ErrorCode::kInvalidArgument, [&] {
      block->forward(at::ones({4, 2}), some_batch(), training(1));
    });
  };
  CHECK(message([] { TORCH_CHECK(false, "first\nsecond"); }) ==
        "block 1: forward() failed: first second");
  CHECK(message([] { throw std::out_of_range("index 7"); }) ==
        "block 1: forward() failed: index 7");
  CHECK_THROWS_AS(message([] {
                    throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "full");
                  }),
                  c10::OutOfMemoryError);
  CHECK_THROWS_AS(message([] { throw std::bad_alloc(); }), std::bad_alloc);
  MicroBatch wrong = some_batch();
  wrong.input_ids = at::ones({4, 5});
  const auto block = child_of(nn::Sequential(nn::Linear(3, 2)), 0);
  const std::string shapes =
      error_of(ErrorCode::kInvalidArgument, [&] { block->forward({}, wrong, training(1)); });
  CHECK_THAT(shapes, test::starts_with("block 0: forward() failed: "));
  CHECK_THAT(shapes,
             // LibTorch's message, which currently names addmm
             test::contains("mat1 and mat2 shapes"));
}

TEST_CASE("a first block without inputs says so") {
  const auto block = child_of(nn::Sequential(nn::Linear(3, 2)), 0);
  MicroBatch batch = some_batch();
  batch.input_ids = at::Tensor();
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { block->forward({}, batch, training(1)); }),
             test::contains("input_ids"));
}

TEST_CASE("functions of a user's own may take the context behind the micro-batch") {
  std::vector<BlockContext> seen;
  const auto loss = [&](const at::Tensor& output, const MicroBatch&, const BlockContext& context) {
    seen.push_back(context);
    return output.sum();
  };
  const auto step = [&](nn::LinearImpl& net, const MicroBatch& batch, const BlockContext& context) {
    seen.push_back(context);
    return net.forward(batch.input_ids).sum();
  };
  const auto scores = [&](nn::LinearImpl& net, const MicroBatch& batch,
                          const BlockContext& context) {
    seen.push_back(context);
    return net.forward(batch.input_ids);
  };
  const auto forward = [&](nn::LinearImpl& net, const at::Tensor& x, const MicroBatch&,
                           const BlockContext& context) {
    seen.push_back(context);
    return net.forward(x);
  };
  const nn::Linear net(3, 2);
  const BlockContext given{.seed = 5, .training = true};
  const auto calls = [&](const ModelSpec& model, bool with_scores) {
    seen.clear();
    WholeModel whole(model, {});
    whole.forward(some_batch(), given);
    if (with_scores) whole.logits(some_batch(), given);
    for (const BlockContext& context : seen) {
      CHECK(context.seed == 5);
      CHECK(context.training);
    }
    return seen.size();
  };
  CHECK(calls(from_module(net, loss), false) == 1);
  CHECK(calls(from_sequential(nn::Sequential(nn::Tanh(), net), loss), false) == 1);
  CHECK(calls(from_callable(net, step), false) == 1);
  CHECK(calls(from_callable(net, step, scores), true) == 2);
  CHECK(calls(chain({block_of(net, forward)}, loss), false) == 2);
  CHECK(calls(chain({block_of(net)}, loss), false) == 1);
}

TEST_CASE("a loss of any kind of function, or none") {
  using OfBatch = std::function<at::Tensor(const at::Tensor&, const MicroBatch&)>;
  const at::Tensor output = at::ones({2, 3});
  const LossFunction of_pointer = sum_of, of_function = OfBatch(sum_of);
  CHECK(of_pointer(output, {}, {}).item<double>() == 6);
  CHECK(of_function(output, {}, {}).item<double>() == 6);
  CHECK(LossFunction(OfBatch()) == nullptr);
  CHECK_FALSE(LossFunction());
  CHECK(LossFunction(of_pointer) != nullptr);
}
