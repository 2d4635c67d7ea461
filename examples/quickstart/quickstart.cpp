// SPDX-License-Identifier: MIT
// A plain torch::nn module under any strategy:
//   quickstart zero3                      one process, one rank
//   quickstart zero3 4                    four ranks as threads
//   mpirun -n 4 quickstart zero3          four processes
// All of them print the same losses.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

// Points of a spiral with three arms; which arm is the label.
MicroBatch spiral(int64_t first, int64_t count) {
  const at::Tensor i = torch::arange(first, first + count, torch::kFloat);
  const at::Tensor arm = i.remainder(3), radius = (i * 0.37).remainder(1);
  const at::Tensor angle = radius * 4 + arm * 2.1;
  return make_micro_batch(torch::stack({radius * angle.cos(), radius * angle.sin()}, 1),
                          arm.to(torch::kLong));
}

ModelSpec spiral_model() {
  torch::nn::Sequential layers(torch::nn::Linear(2, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 3));
  auto loss = [](const at::Tensor& scores, const MicroBatch& batch) {
    return torch::nn::functional::cross_entropy(
        scores, batch.labels,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  return from_sequential(layers.ptr(), loss);
}

void train(const ModelSpec& model, const ParallelConfig& config, Communicator& world) {
  constexpr int64_t kGlobalBatch = 96, kSteps = 200;
  DeviceMesh mesh(world, {.data = world.size()});
  auto strategy = make_strategy(config, mesh);
  // Unlike torch.optim.AdamW's 0.01 the decay is 0; .weight_decay is of matrices only, not of
  // biases.
  strategy->attach(model, {.device = world.device(), .seed = 1}, make_adamw({}));
  // Unlike a loop of your own this clips to a norm of 1; .max_grad_norm = 0 does not.
  Trainer trainer(*strategy,
                  {.device = world.device(), .max_steps = kSteps, .schedule = {.peak = 1e-2}});
  const int64_t mine = kGlobalBatch / world.size();
  int64_t next = world.rank() * mine;
  trainer.fit([&] { return std::vector{spiral(std::exchange(next, next + kGlobalBatch), mine)}; },
              [&](const StepReport& report) {
                if (world.rank() != 0 || report.step % 20 != 0) return;
                std::printf("step %3lld  loss %.6f\n", static_cast<long long>(report.step),
                            report.loss);
              });
}

}  // namespace

int main(int argc, char** argv) {
  const ParallelConfig config{.strategy = argc > 1 ? argv[1] : "single"};
  const JobOptions job{.ranks = argc > 2 ? std::atoi(argv[2]) : 0};
  torch::manual_seed(1);  // every process draws the same weights
  const ModelSpec model = spiral_model();
  return run_job(job, [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
    train(model, config, world);
  });
}
