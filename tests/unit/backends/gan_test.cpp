// SPDX-License-Identifier: MIT
// Users' loops over two models, compared with plain LibTorch.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include "tessera/model/callable.h"
#include "tests/support/forward_loops.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

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
  // Terms per row; real rows are passed by name.
  const auto losses = [](Critic& critic, const MicroBatch& batch) {
    const at::AutoGradMode gradients(true);  // for the penalty, in evaluations too
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
  // Copied before the plain loop trains it.
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

TEST_CASE("a pass without gradients of parameters leaves those that wait for the step") {
  const ModelSpec g_model = from_sequential(generator(), no_loss);
  const ModelSpec d_model = from_sequential(discriminator(), no_loss);
  on_layouts([&](Communicator& world, const FuzzCase& layout) {
    Two two(world, layout, g_model, d_model);
    Strategy& d = two.second();
    bce(d.forward(rows(two.own(real(0)))), 1).backward();
    const double before = d.grad_norm_squared().item<double>();
    const at::Tensor made = two.own(real(1)).clone().requires_grad_();
    bce(d.forward(rows(made), {.parameter_gradients = false}), 1).backward();
    const double after = d.grad_norm_squared().item<double>();
    test::require(after == before, "squared norm ", after, " instead of ", before);
    test::require(made.grad().abs().max().item<double>() > 0, "no gradient of the input");
    d.optimizer_step(kRate);
  });
}
