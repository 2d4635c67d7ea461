// An optimizer of your own: AdaBelief (Zhuang et al. 2020) as one function. It gets pieces of
// parameters, as the strategy has cut them; its state is sharded, offloaded and saved with them.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

OptimizerFactory make_ada_belief(double weight_decay) {
  const auto update = [](const ElementwiseStep& step, std::vector<at::Tensor>& state) {
    at::Tensor &mean = state[0], &surprise = state[1];
    mean = mean * kBeta1 + step.gradient * (1 - kBeta1);
    surprise = surprise * kBeta2 + (step.gradient - mean).square() * (1 - kBeta2) + kEpsilon;
    const at::Tensor first = mean / (1 - torch::pow(kBeta1, step.step));
    const at::Tensor second = surprise / (1 - torch::pow(kBeta2, step.step));
    const at::Tensor decayed = step.parameter * (1 - step.learning_rate * step.weight_decay);
    return decayed - step.learning_rate * first / (second.sqrt() + kEpsilon);
  };
  return make_elementwise("AdaBelief", {"exp_avg", "exp_avg_var"}, update, weight_decay);
}

nn::Sequential classifier() {
  return nn::Sequential(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 3));
}

at::Tensor loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores, batch.labels);
}

MicroBatch rows(int64_t step, int64_t part, int64_t parts) {
  const int64_t count = 48 / parts;
  const at::Tensor i = torch::arange(part * count, (part + 1) * count) + step * 48;
  return make_micro_batch((i.unsqueeze(1) * torch::arange(1, 9) * 0.21).cos(), i % 3);
}

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_ada_belief(0.01));
  Losses losses;
  for (int i = 0; i < 20; ++i) {
    const std::vector batches{rows(i, world.rank(), world.size()).to(world.device())};
    losses.push_back(strategy->forward_backward(batches).loss.item<double>());
    strategy->optimizer_step(/*learning_rate=*/1e-2);
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  torch::manual_seed(1);
  const nn::Sequential net = classifier();
  return run_program(argc, argv, [&](Communicator& world, const ParallelConfig& config) {
    return train(world, config, net);
  });
}
