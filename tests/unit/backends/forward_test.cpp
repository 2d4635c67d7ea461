// Models as differentiable functions: loops that users of LibTorch have, beside the plain ones.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/model/callable.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/watchdog.hpp"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

constexpr double kRate = 0.1, kMomentum = 0.9;
constexpr int64_t kRows = 12, kSteps = 3;

const std::vector<std::string> kLayouts{
    "strategy=single",
    "strategy=ddp data=2",
    "strategy=ddp data=3 bucket_bytes=300",
    "strategy=zero1 data=2",
    "strategy=zero2 data=2",
    "strategy=zero2 data=2 reduce_at_boundary=1",
    "strategy=zero3 data=3 persistence_threshold=8",
    "strategy=fsdp data=2 gradient_checkpointing=1",
    "strategy=fsdp data=2 reshard_after_forward=0 fsdp_unit_numel=100",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=device gradient_checkpointing=1",
};

nn::Sequential generator() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(3, 7), nn::Tanh(), nn::Linear(7, 4));
}
nn::Sequential discriminator() {
  torch::manual_seed(2);
  return nn::Sequential(nn::Linear(4, 9), nn::LayerNorm(nn::LayerNormOptions({9})), nn::Tanh(),
                        nn::Linear(9, 1));
}

at::Tensor no_loss(const at::Tensor& output, const MicroBatch&) { return output.sum() * 0; }

at::Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}
at::Tensor noise(int64_t step) { return drawn({kRows, 3}, 50 + step); }
at::Tensor real(int64_t step) { return drawn({kRows, 4}, 80 + step) + 0.5; }

at::Tensor bce(const at::Tensor& scores, double target) {
  return F::binary_cross_entropy_with_logits(scores, at::full_like(scores, target));
}

// By name; the module's in full.
using Weights = std::map<std::string, at::Tensor>;
Weights weights_of(const nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}
Weights without_module(Named named) {
  Weights weights;
  for (auto& [name, value] : named) {
    weights[name.starts_with("module.") ? name.substr(7) : name] = value;
  }
  return weights;
}

struct Gan {
  Weights generator, discriminator;
  std::vector<double> losses;
};

Gan plain_gan() {
  nn::Sequential g = generator(), d = discriminator();
  torch::optim::SGD of_g(g->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum));
  torch::optim::SGD of_d(d->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum));
  Gan gan;
  for (int64_t step = 0; step < kSteps; ++step) {
    of_d.zero_grad();
    const at::Tensor fake = g->forward(noise(step));
    const at::Tensor d_loss = bce(d->forward(real(step)), 1) + bce(d->forward(fake.detach()), 0);
    d_loss.backward();
    of_d.step();
    of_g.zero_grad();
    const at::Tensor g_loss = bce(d->forward(fake), 1);
    g_loss.backward();
    of_g.step();
    gan.losses.push_back(d_loss.item<double>());
    gan.losses.push_back(g_loss.item<double>());
  }
  gan.generator = weights_of(*g);
  gan.discriminator = weights_of(*d);
  return gan;
}

std::vector<double> mean_over(Communicator& data, std::initializer_list<at::Tensor> losses) {
  std::vector<double> means;
  for (const at::Tensor& loss : losses) {
    at::Tensor sum = loss.detach().clone();
    data.all_reduce(sum).wait();
    means.push_back(sum.item<double>() / data.size());
  }
  return means;
}

// Two strategies on one mesh.
class Two {
 public:
  Two(Communicator& world, const FuzzCase& layout, const ModelSpec& first, const ModelSpec& second)
      : mesh_(world, layout.mesh),
        first_(make_strategy(layout.parallel, mesh_)),
        second_(make_strategy(layout.parallel, mesh_)) {
    const OptimizerFactory sgd = make_sgd({.momentum = kMomentum});
    first_->attach(first, {.seed = 3}, sgd);
    second_->attach(second, {.seed = 4}, sgd);
  }
  Strategy& first() { return *first_; }
  Strategy& second() { return *second_; }
  Communicator& data() { return mesh_.axis(Axis::kData); }
  at::Tensor own(const at::Tensor& rows) {
    const int64_t count = rows.size(0) / data().size();
    return rows.narrow(0, count * data().rank(), count);
  }

 private:
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> first_, second_;
};

void on_layouts(const std::function<void(Communicator&, const FuzzCase&)>& script) {
  for (const std::string& line : kLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    CHECK_NOTHROW(
        test::run_ranks(layout.ranks(), [&](Communicator& world) { script(world, layout); }));
  }
}

void require_equal(const Weights& actual, const Weights& expected) {
  const std::string differs = difference(actual, expected, 1e-5);
  test::require(differs == "", differs);
}

void refused(const std::string& says, const std::function<void()>& call) {
  const std::string said = test::require_error(ErrorCode::kInvalidArgument, call, says);
  test::require(said.find(says) != std::string::npos, "it says: ", said);
}

MicroBatch rows(const at::Tensor& x) { return make_micro_batch(x, {}); }

}  // namespace

TEST_CASE("a GAN of two strategies on one mesh is as in plain LibTorch") {
  const Gan expected = plain_gan();
  const ModelSpec g_model = from_sequential(generator(), no_loss);
  const ModelSpec d_model = from_sequential(discriminator(), no_loss);
  on_layouts([&](Communicator& world, const FuzzCase& layout) {
    Two two(world, layout, g_model, d_model);
    Strategy &g = two.first(), &d = two.second();
    std::vector<double> losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor fake = g.forward(rows(two.own(noise(step))));
      const at::Tensor d_loss =
          bce(d.forward(rows(two.own(real(step)))), 1) + bce(d.forward(rows(fake.detach())), 0);
      d_loss.backward();
      d.optimizer_step(kRate);
      const at::Tensor g_loss = bce(d.forward(rows(fake), {.parameter_gradients = false}), 1);
      g_loss.backward();
      g.optimizer_step(kRate);
      for (const double loss : mean_over(two.data(), {d_loss, g_loss})) losses.push_back(loss);
    }
    test::require(difference(losses, expected.losses, 1e-5) == "",
                  "losses: ", difference(losses, expected.losses, 1e-5));
    require_equal(parameters_of(g), expected.generator);
    require_equal(parameters_of(d), expected.discriminator);
  });
}

TEST_CASE("a critic with a gradient penalty inside its block is as in plain LibTorch") {
  struct Critic : nn::Module {
    at::Tensor forward(const at::Tensor& x) { return down->forward(at::tanh(up->forward(x))); }
    nn::Linear up{register_module("up", nn::Linear(4, 9))};
    nn::Linear down{register_module("down", nn::Linear(9, 1))};
  };
  // Each row's own terms; real rows come by name.
  const auto losses = [](Critic& critic, const MicroBatch& batch) {
    const at::AutoGradMode gradients(true);  // of the penalty, in evaluations too
    const at::Tensor fake = batch.input_ids, given = batch.get("real");
    const at::Tensor between = (0.3 * fake + 0.7 * given).detach().requires_grad_();
    const at::Tensor slope = torch::autograd::grad({critic.forward(between).sum()}, {between}, {},
                                                   /*retain_graph=*/true, /*create_graph=*/true)[0];
    const at::Tensor penalty = (slope.norm(2, 1) - 1).square();
    return (critic.forward(fake) - critic.forward(given)).squeeze(1) + 10 * penalty;
  };
  const auto scores = [](Critic& critic, const MicroBatch& batch) {
    return critic.forward(batch.input_ids);
  };
  torch::manual_seed(5);
  const auto net = std::make_shared<Critic>(), plain = std::make_shared<Critic>();
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) {
      plain->named_parameters()[item.key()].copy_(item.value());
    }
  }
  nn::Sequential plain_g = generator();
  torch::optim::SGD of_g(plain_g->parameters(),
                         torch::optim::SGDOptions(kRate).momentum(kMomentum));
  torch::optim::SGD of_d(plain->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum));
  for (int64_t step = 0; step < kSteps; ++step) {
    of_d.zero_grad();
    const at::Tensor fake = plain_g->forward(noise(step));
    losses(*plain, make_micro_batch(fake.detach(), {}, {{"real", real(step)}})).mean().backward();
    of_d.step();
    of_g.zero_grad();
    (-plain->forward(fake)).mean().backward();
    of_g.step();
  }
  const ModelSpec critic =
      from_callable(with_values([] { return std::make_shared<Critic>(); }, net), losses, scores,
                    {.reduction = LossReduction::kNone});
  const ModelSpec g_model = from_sequential(generator(), no_loss);
  on_layouts([&](Communicator& world, const FuzzCase& layout) {
    Two two(world, layout, g_model, critic);
    Strategy &g = two.first(), &d = two.second();
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor fake = g.forward(rows(two.own(noise(step))));
      d.forward_backward(
          std::vector{make_micro_batch(fake.detach(), {}, {{"real", two.own(real(step))}})});
      d.optimizer_step(kRate);
      (-d.forward(rows(fake), {.parameter_gradients = false})).mean().backward();
      g.optimizer_step(kRate);
    }
    require_equal(parameters_of(g), weights_of(*plain_g));
    require_equal(without_module(parameters_of(d)), weights_of(*plain));
    // Such a model has scores.
    const at::Tensor predicted = d.predict(std::vector{rows(two.own(real(0)))}).front();
    const at::NoGradGuard no_grad;
    test::require(at::allclose(predicted, plain->forward(two.own(real(0))), 1e-4, 1e-5), "scores");
  });
}

TEST_CASE("a student learns from a teacher that is another strategy") {
  const auto kl = [](const at::Tensor& student, const at::Tensor& teacher) {
    return at::kl_div(student.log_softmax(1), teacher.log_softmax(1), at::Reduction::Sum,
                      /*log_target=*/true);
  };
  nn::Sequential teacher = discriminator(), plain = generator();
  teacher->push_back(nn::Linear(1, 4));
  torch::optim::SGD optimizer(plain->parameters(),
                              torch::optim::SGDOptions(kRate).momentum(kMomentum));
  const ModelSpec t_model = from_sequential(teacher, no_loss);
  const ModelSpec s_model = from_sequential(plain, no_loss);
  // Clones, before the plain loop trains it.
  const Weights before = weights_of(*plain);
  const auto inputs = [](int64_t step) {
    return std::pair(noise(step), at::cat({noise(step), noise(step).narrow(1, 0, 1)}, 1));
  };
  const auto student = generator();
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto [narrow, wide] = inputs(step);
    optimizer.zero_grad();
    (kl(plain->forward(narrow), teacher->forward(wide).detach()) / double(kRows)).backward();
    optimizer.step();
  }
  const ModelSpec fresh = from_sequential(student, no_loss);
  on_layouts([&](Communicator& world, const FuzzCase& layout) {
    Two two(world, layout, t_model, fresh);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [narrow, wide] = inputs(step);
      at::Tensor targets;
      {
        const at::NoGradGuard no_grad;
        targets = two.first().forward(rows(two.own(wide)), {.training = false});
      }
      test::require(!targets.requires_grad(), "a plain tensor");
      const at::Tensor scores = two.second().forward(rows(two.own(narrow)));
      (kl(scores, targets) / double(scores.size(0))).backward();
      two.second().optimizer_step(kRate);
    }
    require_equal(parameters_of(two.second()), weights_of(*plain));
  });
}

TEST_CASE("backward through the scores of a language model is that of its loss") {
  const auto batch_of = [](int rank) {
    const at::Tensor ids = (at::arange(12).view({2, 6}) * 5 + 7 * rank).remainder(23);
    return make_micro_batch(ids, ids.roll(-1, 1));
  };
  std::vector<std::string> lines = kLayouts;
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
      CHECK_NOTHROW(
          play({.model = LanguageModel(config).make_causal(),
                .mesh = layout.mesh,
                .parallel = layout.parallel,
                .optimizer = make_sgd({})},
               [&](Player& player) {
                 Strategy& s = player.strategy();
                 const MicroBatch batch = batch_of(player.data_rank());
                 s.forward_backward(std::vector{batch});
                 const Named expected = gradients_of(s);
                 s.optimizer_step(0.1, at::ones({}));
                 for (const bool fused : {false, true}) {
                   MicroBatch given = batch;
                   given.fused_layers = fused;
                   const at::Tensor scores = s.forward(given);
                   at::cross_entropy_loss(scores.flatten(0, 1), batch.labels.flatten()).backward();
                   const std::string differs = difference(gradients_of(s), expected, 2e-5, 1e-4);
                   test::require(differs == "", differs);
                   s.optimizer_step(0.1, at::ones({}));
                 }
               }));
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
  for (const std::string& line : kLayouts) {
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
           // Inputs alone: parameters get nothing.
           x.mutable_grad().reset();
           s.forward(rows(x), {.parameter_gradients = false}).sum().backward();
           test::require(x.grad().defined() && x.grad().abs().sum().item<double>() > 0,
                         "of inputs");
           s.optimizer_step(0.1);  // the last gradient once more: it is still there
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
