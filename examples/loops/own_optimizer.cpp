// SPDX-License-Identifier: MIT
// A custom optimizer: AdaBelief (Zhuang et al. 2020) as one function. It gets the strategy's shards
// of parameters; its state is sharded, offloaded and saved with them.
#include "classifier.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;

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

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, mean_loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_ada_belief(0.01));
  return train_steps(world, *strategy, rows);
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, classifier, train); }
