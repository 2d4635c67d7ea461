// SPDX-License-Identifier: MIT
// Models of from_callable(): several inputs and outputs, and users' losses.
#include "tessera/model/callable.h"

#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformer.h>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/all_gather.h"
#include "tessera/model/batch_norm.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/unit/backends/strangers.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

struct Classifier : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down->forward(at::tanh(up->forward(x))); }
  nn::Linear up{register_module("up", nn::Linear(6, 5))};
  nn::Linear down{register_module("down", nn::Linear(5, 3))};
};

struct Translator : nn::Module {
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) {
    const at::Tensor in = table->forward(source).transpose(0, 1);
    const at::Tensor out = table->forward(target).transpose(0, 1);
    return head->forward(body->forward(in, out).transpose(0, 1));
  }
  nn::Embedding table{register_module("table", nn::Embedding(11, 8))};
  nn::Transformer body{register_module(
      "body", nn::Transformer(nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(12).dropout(0)))};
  nn::Linear head{register_module("head", nn::Linear(8, 11))};
};

// A second input of another length, and rows with different numbers of targets.
std::vector<MicroBatch> translations() {
  return two_steps([](const at::Generator& g) {
    const at::Tensor target = at::randint(11, {12, 5}, g, at::kLong);
    at::Tensor labels = target.roll(-1, 1);
    labels.masked_fill_(at::rand(labels.sizes(), g) < 0.4, kIgnoredLabel);
    return make_micro_batch(at::randint(11, {12, 3}, g, at::kLong), labels, {{"target", target}});
  });
}

std::vector<MicroBatch> pairs() {
  return two_steps([](const at::Generator& g) {
    return make_micro_batch(at::randn({12, 6}, g), at::randint(2, {12}, g, at::kLong),
                            {{"other", at::randn({12, 6}, g)}});
  });
}

at::Tensor class_weights() { return at::tensor({0.2f, 3.0f, 1.0f}); }

template <typename R>
at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& labels, R reduction,
                         const at::Tensor& weight = {}) {
  return F::cross_entropy(scores, labels,
                          F::CrossEntropyFuncOptions().reduction(reduction).weight(weight));
}

const auto make_classifier = [] { return std::make_shared<Classifier>(); };

template <typename Net, typename Step>
auto callable(Step step, const ModuleOptions& options = {}) {
  return [=](const std::shared_ptr<Net>& net) {
    return from_callable(with_values([] { return std::make_shared<Net>(); }, net), step, options);
  };
}

}  // namespace

TEST_CASE("an encoder-decoder takes two inputs") {
  const auto mean = [](Translator& net, const MicroBatch& batch) {
    const at::Tensor scores = net.forward(batch.input_ids, batch.get("target"));
    return cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), torch::kMean);
  };
  check_program<Translator>("translation", translations(), mean,
                            callable<Translator>(mean, {.reduction = LossReduction::kMean}));
}

TEST_CASE("a siamese network has losses one by one") {
  const auto losses = [](Classifier& net, const MicroBatch& batch) {
    const at::Tensor apart =
        (net.forward(batch.input_ids) - net.forward(batch.get("other"))).norm(2, 1);
    const at::Tensor same = batch.labels.to(at::kFloat);
    return same * apart.square() + (1 - same) * (1 - apart).clamp_min(0).square();
  };
  check_program<Classifier>(
      "siamese", pairs(),
      [=](Classifier& net, const MicroBatch& batch) { return losses(net, batch).mean(); },
      callable<Classifier>(losses, {.reduction = LossReduction::kNone}));
}

TEST_CASE("a contrastive loss sees the rows of all ranks") {
  const auto loss_of = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& all_a,
                          const at::Tensor& all_b, int64_t first) {
    const at::Tensor labels = at::arange(first, first + a.size(0));
    return (cross_entropy(a.matmul(all_b.t()), labels, torch::kMean) +
            cross_entropy(b.matmul(all_a.t()), labels, torch::kMean)) /
           2;
  };
  const auto mean = [=](Classifier& net, const MicroBatch& batch) {
    const at::Tensor a = net.forward(batch.input_ids), b = net.forward(batch.get("other"));
    return loss_of(a, b, a, b, 0);
  };
  const auto own_rows = [=](Classifier& net, const MicroBatch& batch, const BlockContext& context) {
    const at::Tensor a = net.forward(batch.input_ids), b = net.forward(batch.get("other"));
    return loss_of(a, b, all_gather(a, context), all_gather(b, context),
                   data_rank(context) * a.size(0));
  };
  check_program<Classifier>("own rows against all", pairs(), mean,
                            callable<Classifier>(own_rows, {.reduction = LossReduction::kMean}),
                            {.whole = true});
  const auto all_rows = [=](Classifier& net, const MicroBatch& batch, const BlockContext& context) {
    const at::Tensor a = all_gather(net.forward(batch.input_ids), context);
    const at::Tensor b = all_gather(net.forward(batch.get("other")), context);
    return loss_of(a, b, a, b, 0);
  };
  check_program<Classifier>("all rows on every rank", pairs(), mean,
                            callable<Classifier>(all_rows, {.reduction = LossReduction::kMean}),
                            {.whole = true});
}

namespace {

struct Normed : nn::Module {
  template <typename Norm>
  at::Tensor forward(const at::Tensor& x, const Norm& norm) {
    return down->forward(at::tanh(norm(up->forward(x))));
  }
  nn::Linear up{register_module("up", nn::Linear(6, 5))};
  nn::BatchNorm1d bn{register_module("bn", nn::BatchNorm1d(5))};
  nn::Linear down{register_module("down", nn::Linear(5, 3))};
};

}  // namespace

TEST_CASE("a BatchNorm sees the rows of all ranks") {
  const auto mean = [](Normed& net, const MicroBatch& batch) {
    const auto of_these = [&](const at::Tensor& x) { return net.bn->forward(x); };
    return cross_entropy(net.forward(batch.input_ids, of_these), batch.labels, torch::kMean);
  };
  const auto step = [](Normed& net, const MicroBatch& batch, const BlockContext& context) {
    const auto of_all = [&](const at::Tensor& x) { return global_batch_norm(net.bn, x, context); };
    return cross_entropy(net.forward(batch.input_ids, of_all), batch.labels, torch::kMean);
  };
  const ModuleOptions options{.running_statistics_of_rank = 0, .reduction = LossReduction::kMean};
  check_program<Normed>("BatchNorm", rows_with_classes(), mean, callable<Normed>(step, options),
                        {.whole = true});
}

TEST_CASE("running statistics of a BatchNorm over all ranks are those of one") {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  const at::Tensor x = at::randn({12, 5, 2}, generator) * 3 + 1;
  const auto statistics_after = [](const nn::BatchNorm1d& norm) {
    return at::cat({norm->running_mean, norm->running_var});
  };
  for (const bool cumulative : {false, true}) {
    const auto made = [&] {
      nn::BatchNormOptions options(5);
      if (cumulative) options.momentum(c10::nullopt);
      return nn::BatchNorm1d(options);
    };
    nn::BatchNorm1d plain = made();
    for (const int64_t half : {0, 6}) plain->forward(x.narrow(0, half, 6));
    test::run_ranks(3, [&](Communicator& world) {
      const at::NoGradGuard no_grad;
      nn::BatchNorm1d norm = made();
      for (const int64_t half : {0, 6}) {  // one, two and three rows
        const int64_t rank = world.rank(), first = half + rank * (rank + 1) / 2;
        const BlockContext context{.data_axis = &world};
        global_batch_norm(norm, x.narrow(0, first, rank + 1), context);
      }
      test::require(at::allclose(statistics_after(norm), statistics_after(plain), 1e-5, 1e-6),
                    "other running statistics on rank ", world.rank());
    });
  }
  const BlockContext alone;
  CHECK_THAT(error_of([&] {
               global_batch_norm(nn::BatchNorm1d(5), at::ones({1, 5}), alone);
             }),
             test::contains("one value a channel"));
  CHECK_THAT(error_of([&] {
               global_batch_norm(nn::BatchNorm1d(5), at::ones({0, 5}), alone);
             }),
             test::contains("no rows") && test::contains("[0, 5]"));
  CHECK_THAT(error_of([&] {
               global_batch_norm(nn::BatchNorm1d(5), at::ones({4, 3}), alone);
             }),
             test::contains("3 channels"));
}

TEST_CASE("a step that trains nothing is refused, and says why") {
  struct Unregistered : nn::Module {  // like a TorchScript module that is a plain member
    at::Tensor weight = at::ones({3, 6}, at::requires_grad());
  };
  const auto step = [](Unregistered& net, const MicroBatch& batch) {
    return cross_entropy(at::linear(batch.input_ids, net.weight), batch.labels, torch::kSum);
  };
  const auto frozen = std::make_shared<Classifier>();
  for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  const auto frozen_step = [](Classifier& net, const MicroBatch& batch) {
    return cross_entropy(net.forward(batch.input_ids), batch.labels, torch::kSum);
  };
  const auto refusal = [](const ModelSpec& model) {
    std::string said;
    play(
        {.model = model, .mesh = {.data = 2}, .parallel = {.strategy = "ddp"}},
        [&](Player& player) {
          player.strategy().evaluate(std::vector{rows_with_classes().front()});
          const std::string own = test::require_error(
              ErrorCode::kInvalidArgument,
              [&] { player.strategy().forward_backward(std::vector{rows_with_classes().front()}); },
              "the step");
          if (player.rank() == 0) said = own;
        });
    return said;
  };
  CHECK_THAT(refusal(from_callable([] { return std::make_shared<Unregistered>(); }, step)),
             test::contains("registered") && test::contains("TorchScript"));
  CHECK_THAT(refusal(from_callable(
                 with_values([] { return std::make_shared<Classifier>(); }, frozen), frozen_step)),
             test::contains("requires a gradient"));
}

TEST_CASE("ranks that gather other shapes are told so") {
  const ModelSpec model = callable<Classifier>(
      [](Classifier& net, const MicroBatch& batch, const BlockContext& context) {
        const at::Tensor own = net.forward(batch.input_ids).narrow(0, 0, 1 + data_rank(context));
        return all_gather(own, context).sum();
      })(std::make_shared<Classifier>());
  const std::string message = error_of([&] {
    train_under({.strategy = "ddp"}, {.data = 2}, model, {rows_with_classes(), 4});
  });
  CHECK_THAT(message, test::contains("called something else: all_gather("));
}

TEST_CASE("a micro-batch without targets adds nothing to a mean") {
  std::vector<MicroBatch> data = rows_with_classes();
  for (MicroBatch& batch : data) {  // the last ranks have none
    batch.labels.narrow(0, 6, 6).fill_(kIgnoredLabel);
    batch.target_count = 6;
  }
  const auto mean = [](Classifier& net, const MicroBatch& batch) {
    return cross_entropy(net.forward(batch.input_ids), batch.labels, torch::kMean);
  };
  const auto losses = [](Classifier& net, const MicroBatch& batch) {
    return cross_entropy(net.forward(batch.input_ids), batch.labels, torch::kNone);
  };
  check_program<Classifier>("a mean", data, mean,
                            callable<Classifier>(mean, {.reduction = LossReduction::kMean}));
  check_program<Classifier>("one by one", data, mean,
                            callable<Classifier>(losses, {.reduction = LossReduction::kNone}));
}

TEST_CASE("auxiliary losses, terms of the weights and counters") {
  const auto mean = [](Classifier& net, const MicroBatch& batch) {
    const at::Tensor scores = net.forward(batch.input_ids);
    return cross_entropy(scores, batch.labels, torch::kMean) +
           0.1 * scores.logsumexp(1).square().mean() + 0.01 * net.up->weight.square().sum();
  };
  check_program<Classifier>("a mean", rows_with_classes(), mean,
                            callable<Classifier>(
                                [=](Classifier& net, const MicroBatch& batch) -> LossResult {
                                  return {.loss = mean(net, batch), .counters = at::full({1}, 2.0)};
                                },
                                {.counters = 1, .reduction = LossReduction::kMean}));
  check_program<Classifier>("a sum", rows_with_classes(), mean,
                            callable<Classifier>([](Classifier& net, const MicroBatch& batch) {
                              const at::Tensor scores = net.forward(batch.input_ids);
                              return cross_entropy(scores, batch.labels, torch::kSum) +
                                     0.1 * scores.logsumexp(1).square().sum() +
                                     0.01 * net.up->weight.square().sum() * batch.target_count;
                            }));
}

TEST_CASE("class weights are exact under every layout") {
  const auto mean = [](Classifier& net, const MicroBatch& batch) {
    return cross_entropy(net.forward(batch.input_ids), batch.labels, torch::kMean, class_weights());
  };
  const auto total = [](const MicroBatch& batch) {
    return class_weights().index_select(0, batch.labels).sum();
  };
  check_program<Classifier>(
      "a sum and its divisor", rows_with_classes(), mean,
      callable<Classifier>([=](Classifier& net, const MicroBatch& batch) -> LossResult {
        return {
            cross_entropy(net.forward(batch.input_ids), batch.labels, torch::kSum, class_weights()),
            total(batch)};
      }));
  check_program<Classifier>("a mean and its divisor", rows_with_classes(), mean,
                            callable<Classifier>(
                                [=](Classifier& net, const MicroBatch& batch) -> LossResult {
                                  return {mean(net, batch), total(batch)};
                                },
                                {.reduction = LossReduction::kMean}));
}

TEST_CASE("means of modules, and labels of another floating type") {
  std::vector<MicroBatch> numbers = rows_with_numbers();
  for (MicroBatch& batch : numbers) batch.labels = batch.labels.to(at::kDouble);
  const auto mean = [](Classifier& net, const MicroBatch& batch) {
    return F::mse_loss(net.forward(batch.input_ids), batch.labels.to(at::kFloat));
  };
  const auto loss = [](const at::Tensor& output, const MicroBatch& batch) {
    return F::mse_loss(output, batch.labels);
  };
  const auto elements = [](const at::Tensor& output, const MicroBatch& batch) {
    return F::mse_loss(output, batch.labels, F::MSELossFuncOptions().reduction(torch::kNone));
  };
  const auto model = [](auto of, LossReduction reduction) {
    return [=](const std::shared_ptr<Classifier>& net) {
      return from_module(with_values(make_classifier, net), of, {.reduction = reduction});
    };
  };
  check_program<Classifier>("a mean", numbers, mean, model(loss, LossReduction::kMean));
  check_program<Classifier>("elements", numbers, mean, model(elements, LossReduction::kNone));
  check_program<Classifier>("a step", numbers, mean,
                            callable<Classifier>(
                                [](Classifier& net, const MicroBatch& batch) {
                                  return F::mse_loss(net.forward(batch.input_ids), batch.labels);
                                },
                                {.reduction = LossReduction::kMean}));
}

TEST_CASE("a step that is not what was declared is refused") {
  const auto refusal = [](auto step, const ModuleOptions& options, int ranks = 2) {
    const auto net = std::make_shared<Classifier>();
    const ModelSpec model = callable<Classifier>(step, options)(net);
    return within_limit("a refusal", [&] {
      train_under({.strategy = "ddp"}, {.data = ranks}, model, {rows_with_classes(), 2 * ranks});
      return "trained";
    });
  };
  const auto loss = [](auto reduction, const at::Tensor& weight = {}) {
    return [=](Classifier& net, const MicroBatch& batch) {
      return cross_entropy(net.forward(batch.input_ids), batch.labels, reduction, weight);
    };
  };
  CHECK_THAT(refusal(loss(torch::kMean), {}), test::contains("it is no sum"));
  CHECK_THAT(refusal(loss(torch::kSum), {.reduction = LossReduction::kMean}),
             test::contains("declares a mean"));
  CHECK_THAT(refusal(loss(torch::kMean, class_weights()), {.reduction = LossReduction::kMean}),
             test::contains("LossResult::divisor"));
  CHECK_THAT(refusal(loss(torch::kSum, class_weights()), {}), test::contains("class weights"));
  CHECK_THAT(refusal(loss(torch::kNone), {}), test::contains("LossReduction::kNone"));
  CHECK_THAT(refusal(loss(torch::kSum), {.counters = 1}), test::contains("0 counters"));
  CHECK_THAT(
      refusal(
          [=](Classifier& net, const MicroBatch& batch, const BlockContext& context) -> LossResult {
            return {loss(torch::kSum)(net, batch), {}, at::ones({data_rank(context) + 1})};
          },
          {.counters = 1}),
      test::contains("LossResult has 2 counters"));
  CHECK_THAT(refusal(
                 [=](Classifier& net, const MicroBatch& batch) {
                   batch.input_ids.mul_(2);
                   return loss(torch::kSum)(net, batch);
                 },
                 {}),
             test::contains("\"input_ids\" was changed in place"));
  CHECK_THAT(refusal(
                 [=](Classifier& net, const MicroBatch& batch) {
                   return loss(torch::kSum)(net, batch) + batch.get("image").sum();
                 },
                 {}),
             test::contains("no tensor \"image\" (there is none)"));
}

namespace {

template <typename Step>
constexpr bool kStep = tessera::detail::IsStep<Step, Classifier>;
[[maybe_unused]] const auto of_values = [](Classifier&, MicroBatch) { return at::Tensor(); };
[[maybe_unused]] const auto of_anything = [](auto&, const auto&) { return LossResult(); };
[[maybe_unused]] const auto of_number = [](Classifier&, const MicroBatch&) { return 1.0; };
[[maybe_unused]] const auto of_output = [](const at::Tensor&, const MicroBatch&) {
  return at::Tensor();
};
static_assert(kStep<decltype(of_values)> && kStep<decltype(of_anything)>);
static_assert(!kStep<decltype(of_number)> && !kStep<decltype(of_output)>);
static_assert(std::is_void_v<tessera::detail::ModuleOf<int>>);
static_assert(std::is_same_v<tessera::detail::ModuleOf<nn::Linear>, nn::LinearImpl>);

}  // namespace
