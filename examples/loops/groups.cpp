// SPDX-License-Identifier: MIT
// Parameter groups: two learning rates, a part without decay, and a frozen part.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

nn::Sequential tagger() {
  return nn::Sequential(nn::Embedding(50, 16), nn::Linear(16, 16), nn::Tanh(), nn::Linear(16, 5));
}

ModelSpec model_of(const nn::Sequential& net) {
  const auto loss = [](const at::Tensor& scores, const MicroBatch& batch) {
    return F::cross_entropy(scores, batch.labels);
  };
  // Blocks of a Sequential are called "0", "1", ...
  return with_groups(
      from_sequential(net, loss, {.reduction = LossReduction::kMean}),
      {{.name = "table", .matches = named("0"), .frozen = true},
       {.name = "body", .matches = named("1.weight"), .lr_factor = 0.1},
       {.name = "head",
        .matches = [](const std::string& block, const std::string&,
                      at::IntArrayRef shape) { return block == "3" && shape.size() == 2; },
        .weight_decay = 0.0}});
}

MicroBatch rows(int64_t step, int64_t part, int64_t parts) {
  const int64_t count = 48 / parts;
  const at::Tensor i = torch::arange(part * count, (part + 1) * count) + step * 48;
  return make_micro_batch((i * 7) % 50, i % 5);
}

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(model_of(net), {.device = world.device()}, make_adamw({.weight_decay = 0.1}));
  return train_steps(world, *strategy, rows);
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, tagger, train); }
