// SPDX-License-Identifier: MIT
// Example of a user's project: two in-process ranks train a linear layer with data parallelism.
#include <ATen/ATen.h>
#include <tessera/comm/local.h>
#include <tessera/tessera.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <vector>

static_assert(__cplusplus >= 202002L, "the tessera targets ask for C++20");

int main() {
  using namespace tessera;
  torch::nn::Linear layer(3, 1);
  const auto loss = [](const at::Tensor& y, const MicroBatch& batch) {
    return (y - batch.labels).square().sum();
  };
  const ModelSpec model = from_module(layer.ptr(), loss);
  std::vector<double> losses;
  run_local_ranks(2, [&](Communicator& world) {
    Ddp strategy({.strategy = "ddp"}, world);
    strategy.attach(model, {.seed = 1}, make_adamw({}));
    const at::Tensor x = at::eye(3) * (world.rank() + 1.0);
    const std::vector<MicroBatch> batches{make_micro_batch(x, x.sum(1, /*keepdim=*/true))};
    for (int step = 0; step < 3; ++step) {
      const double now = strategy.forward_backward(batches).loss.item<double>();
      strategy.optimizer_step(/*learning_rate=*/0.05);
      if (world.rank() == 0) losses.push_back(now);
    }
  });
  std::printf("loss %.4f -> %.4f -> %.4f\n", losses[0], losses[1], losses[2]);
  return losses[2] < losses[1] && losses[1] < losses[0] ? 0 : 1;
}
