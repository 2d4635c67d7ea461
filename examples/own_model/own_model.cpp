// SPDX-License-Identifier: MIT
// A torch::nn module of your own with the flags, metrics, checkpoints and evaluations of tessera's
// programs:
//   own_model --output_dir out --num_train_epochs 20 --learning_rate 1e-2 --save_strategy epoch
//   mpirun -n 4 own_model --strategy zero3 --output_dir out --resume_from_checkpoint auto
//   own_model --help
#include <torch/torch.h>

#include "tessera/model/adapters.h"
#include "tessera/run/training_program.h"

namespace {

using namespace tessera;

// Points of a spiral with three arms; which arm is the label. noise: how far off they are.
RowSet spiral(int64_t rows, double noise) {
  const at::Tensor i = torch::arange(rows, torch::kFloat), arm = i.remainder(3);
  const at::Tensor radius = (i * 0.37).remainder(1);
  const at::Tensor angle = radius * 4 + arm * 2.1 + noise * (i * 0.61).sin();
  const at::Tensor points = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  const at::Tensor labels = arm.to(torch::kLong);
  return {.count = rows, .batch = [=](std::span<const int64_t> numbers) {
            const at::Tensor chosen =
                torch::tensor(std::vector<int64_t>(numbers.begin(), numbers.end()));
            return make_micro_batch(points.index_select(0, chosen), labels.index_select(0, chosen));
          }};
}

ModelSpec spiral_model(int64_t hidden) {
  torch::nn::Sequential layers(torch::nn::Linear(2, hidden), torch::nn::Tanh(),
                               torch::nn::Linear(hidden, hidden), torch::nn::Tanh(),
                               torch::nn::Linear(hidden, 3));
  auto loss = [](const at::Tensor& scores, const MicroBatch& batch) {
    return torch::nn::functional::cross_entropy(
        scores, batch.labels,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  return from_sequential(layers.ptr(), loss);
}

}  // namespace

int main(int argc, char** argv) {
  int64_t hidden = 64;
  return run_training({.name = "own_model",
                       .summary = "Learns which arm of a spiral a point is on.",
                       .flags = {{"hidden", &hidden, "units of a hidden layer"}},
                       .make =
                           [&] {
                             return TrainingTask{.model = spiral_model(hidden),
                                                 .train = spiral(1000, 0.1),
                                                 .validation = spiral(200, 0.05),
                                                 .data = "spiral of 1000 points"};
                           }},
                      argc, argv);
}
