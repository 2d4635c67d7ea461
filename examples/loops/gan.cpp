// SPDX-License-Identifier: MIT
// A DCGAN (Radford et al. 2015): two models with two strategies on one mesh. The generator's step
// backpropagates through the discriminator without gradients for its weights.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

nn::Sequential generator() {
  return nn::Sequential(
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 8, 4)), nn::ReLU(),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 1, 4).stride(2).padding(1)), nn::Tanh());
}
nn::Sequential discriminator() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 8, 4).stride(2).padding(1)),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)), nn::Flatten(),
                        nn::Linear(128, 1));
}

// Loss of scores that should say real (1) or fake (0).
at::Tensor told(const at::Tensor& scores, double real) {
  return F::binary_cross_entropy_with_logits(scores, torch::full_like(scores, real));
}

at::Tensor noise(int64_t step, int64_t part, int64_t parts) {
  const int64_t rows = 24 / parts;
  const at::Tensor i = torch::arange(part * rows, (part + 1) * rows).view({rows, 1, 1, 1});
  return ((i + step * 24) * torch::arange(1, 9).view({1, 8, 1, 1}) * 0.7).sin();
}
at::Tensor images(int64_t step, int64_t part, int64_t parts) {
  const int64_t rows = 24 / parts;
  const at::Tensor i = torch::arange(part * rows, (part + 1) * rows).view({rows, 1, 1, 1});
  return (torch::arange(64).view({1, 1, 8, 8}) * 0.2 + i + step).cos();
}

struct Gan {
  nn::Sequential make = generator(), judge = discriminator();
};

Losses train(Communicator& world, const ParallelConfig& config, const Gan& nets) {
  const auto no_loss = [](const at::Tensor& scores, const MicroBatch&) { return scores.sum(); };
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto make = make_strategy(config, mesh), judge = make_strategy(config, mesh);
  make->attach(from_sequential(nets.make, no_loss), {.device = world.device()}, make_adamw({}));
  judge->attach(from_sequential(nets.judge, no_loss), {.device = world.device()}, make_adamw({}));
  const auto forward = [&](Strategy& strategy, const at::Tensor& x,
                           const ForwardOptions& options = {}) {
    return strategy.forward(make_micro_batch(x, torch::zeros({x.size(0)})), options);
  };
  Losses losses;
  for (int i = 0; i < 10; ++i) {
    const at::Tensor real = images(i, world.rank(), world.size()).to(world.device());
    const at::Tensor fake = forward(*make, noise(i, world.rank(), world.size()).to(world.device()));
    const at::Tensor judged =
        told(forward(*judge, real), 1) + told(forward(*judge, fake.detach()), 0);
    judged.backward();
    judge->optimizer_step(/*learning_rate=*/1e-3);
    const at::Tensor made = told(forward(*judge, fake, {.parameter_gradients = false}), 1);
    made.backward();
    make->optimizer_step(/*learning_rate=*/1e-3);
    at::Tensor both = torch::stack({judged.detach(), made.detach()});  // means of this rank's rows
    world.all_reduce(both).wait();
    for (int64_t k : {0, 1}) losses.push_back(both[k].item<double>() / world.size());
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(
      argc, argv, [] { return Gan(); }, train);
}
