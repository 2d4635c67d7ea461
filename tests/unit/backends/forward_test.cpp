// SPDX-License-Identifier: MIT
// The model as a differentiable function, and its rejected uses.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/dropout.h>

#include "tessera/model/callable.h"
#include "tessera/models/language_model.h"
#include "tests/support/forward_loops.h"
#include "tests/support/fused_layers.h"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("backward through the scores of a language model is that of its loss") {
  const auto batch_of = [](int rank) {
    const at::Tensor ids = (at::arange(12).view({2, 6}) * 5 + 7 * rank).remainder(23);
    return make_micro_batch(ids, ids.roll(-1, 1));
  };
  std::vector<std::string> lines = kForwardLayouts;
  lines.insert(lines.end(), {"strategy=ddp tensor=2", "strategy=zero3 data=2 tensor=2",
                             "strategy=zero1 data=2 tensor=2 sequence_parallel=1"});
  for (const std::string type : {"bloom", "llama"}) {
    DecoderConfig config = LanguageModel::defaults(type);
    config.vocabulary = 23;
    config.hidden = 16;
    config.heads = 2;
    config.inner = 24;
    for (const std::string& line : lines) {
      INFO(line);
      const test::Watchdog watchdog(line, std::chrono::seconds(30));
      const FuzzCase layout = parse_case(line);
      const ModelSpec model = LanguageModel(config).make_causal();
      std::vector<Named> expected(static_cast<size_t>(layout.ranks()));
      for (const bool fused : {false, true}) {
        INFO((fused ? "fused layers" : "composed layers"));
        CHECK_NOTHROW(
            play({.model = fused ? with_fused_layers(model) : model,
                  .mesh = layout.mesh,
                  .parallel = layout.parallel,
                  .optimizer = make_sgd({})},
                 [&](Player& player) {
                   Strategy& s = player.strategy();
                   Named& of_steps = expected[static_cast<size_t>(player.rank())];
                   const MicroBatch batch = batch_of(player.data_rank());
                   if (!fused) {
                     s.forward_backward(std::vector{batch});
                     of_steps = gradients_of(s);
                     s.optimizer_step(0.1, at::ones({}));
                   }
                   const at::Tensor scores = s.forward(batch);
                   at::cross_entropy_loss(scores.flatten(0, 1), batch.labels.flatten()).backward();
                   const std::string differs = difference(gradients_of(s), of_steps, 2e-5, 1e-4);
                   test::require(differs == "", differs);
                   s.optimizer_step(0.1, at::ones({}));
                 }));
      }
    }
  }
}

TEST_CASE("passes draw anew, and recomputation draws what the pass drew") {
  const auto made = [] {
    torch::manual_seed(2);
    return nn::Sequential(nn::Linear(4, 9), nn::Dropout(0.5), nn::Linear(9, 2));
  };
  nn::Sequential quiet = made();
  quiet->eval();
  const at::Tensor expected = quiet->forward(real(0)).detach();
  const ModelSpec model = from_sequential(made(), no_loss);
  std::vector<at::Tensor> outputs, gradients;
  for (const bool again : {false, true}) {
    play({.model = model,
          .parallel = {.strategy = "single", .gradient_checkpointing = again},
          .optimizer = make_sgd({})},
         [&](Player& player) {
           Strategy& s = player.strategy();
           const at::Tensor x = real(0).requires_grad_();
           const at::Tensor first = s.forward(rows(x)), second = s.forward(rows(x));
           test::require(!first.equal(second), "another mask");
           const at::Tensor plain = s.forward(rows(real(0)), {.training = false});
           test::require(at::allclose(plain, expected, 1e-5, 1e-6), "dropout is off");
           first.square().sum().backward();
           outputs.push_back(first.detach());
           gradients.push_back(x.grad());
         });
  }
  CHECK(outputs[0].equal(outputs[1]));
  CHECK(gradients[0].equal(gradients[1]));
}

TEST_CASE("what cannot be differentiated is refused in one sentence") {
  const ModelSpec d_model = from_sequential(discriminator(), no_loss);
  for (const std::string& line : kForwardLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    play({.model = d_model,
          .mesh = layout.mesh,
          .parallel = layout.parallel,
          .optimizer = make_sgd({})},
         [&](Player& player) {
           Strategy& s = player.strategy();
           const at::Tensor x = real(0).narrow(0, 0, 2).requires_grad_();
           at::Tensor loss = s.forward(rows(x)).sum();
           loss.backward({}, /*retain_graph=*/true);
           refused("a second backward()", [&] { loss.backward(); });
           s.optimizer_step(0.1);
           loss = s.forward(rows(x)).sum();
           refused("second derivatives do not cross blocks", [&] {
             torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
           });
           loss.backward();
           loss = s.forward(rows(x)).sum();
           s.optimizer_step(0.1);
           refused("weights have changed between forward() and the backward()",
                   [&] { loss.backward(); });
           // Gradients of inputs only: parameters get none.
           x.mutable_grad().reset();
           const Named kept = gradients_of(s);
           s.forward(rows(x), {.parameter_gradients = false}).sum().backward();
           test::require(difference(gradients_of(s), kept, 0) == "", "parameters got gradients");
           test::require(x.grad().defined() && x.grad().abs().sum().item<double>() > 0,
                         "of inputs");
           s.optimizer_step(0.1);  // reuses the last gradient, which is kept
           s.forward(rows(x)).sum().backward();
           const std::vector<MicroBatch> batch{make_micro_batch(real(0), {})};
           refused("do not mix in one step", [&] { s.forward_backward(batch); });
           refused("do not mix in one step",
                   [&] { s.forward_backward(batch, {.accumulate = true}); });
           s.grad_norm_squared();
           refused("would add to a gradient that is complete", [&] { s.forward(rows(x)); });
           refused("do not mix in one step",
                   [&] { s.forward_backward(batch, {.accumulate = true}); });
           s.optimizer_step(0.1);
         });
  }
  play({.model = d_model, .mesh = {.pipeline = 2}, .parallel = {.strategy = "ddp"}},
       [&](Player& player) {
         refused("forward() is not offered under a pipeline",
                 [&] { player.strategy().forward(rows(real(0))); });
       });
  struct Net : nn::Module {
    nn::Linear up{register_module("up", nn::Linear(4, 1))};
  };
  play({.model = from_callable([] { return std::make_shared<Net>(); },
                               [](Net& net, const MicroBatch& batch) {
                                 return net.up->forward(batch.input_ids).sum();
                               }),
        .parallel = {.strategy = "single"}},
       [&](Player& player) {
         refused("from_callable(module, step, scores)",
                 [&] { player.strategy().forward(rows(real(0))); });
         refused("from_callable(module, step, scores)",
                 [&] { player.strategy().predict(std::vector{rows(real(0))}); });
       });
}
