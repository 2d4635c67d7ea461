// SPDX-License-Identifier: MIT
// Mixture of experts with an auxiliary loss of the router (Shazeer et al. 2017; Fedus et al. 2021),
// which balances experts over the rows of all ranks.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kExperts = 4;

struct Experts : nn::Cloneable<Experts> {
  Experts() { reset(); }
  void reset() override {
    router = register_module("router", nn::Linear(16, kExperts));
    experts = register_module("experts", nn::ModuleList());
    for (int64_t i = 0; i < kExperts; ++i) {
      experts->push_back(nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 8)));
    }
  }
  // Scores [rows, 8], and the router's probabilities [rows, experts].
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor probabilities = router(x).softmax(1);
    const auto [gate, chosen] = probabilities.max(1, /*keepdim=*/true);
    at::Tensor scores = torch::zeros({x.size(0), 8}, x.options());
    for (int64_t i = 0; i < kExperts; ++i) {
      scores = scores + (chosen == i) * experts->at<nn::SequentialImpl>(i).forward(x);
    }
    return {gate * scores, probabilities};
  }
  nn::Linear router{nullptr};
  nn::ModuleList experts{nullptr};
};

// Over the rows of all ranks: share of rows times mean probability, summed over experts.
at::Tensor balance_loss(const at::Tensor& probabilities) {
  const at::Tensor chosen = F::one_hot(probabilities.argmax(1), kExperts).to(torch::kFloat);
  return kExperts * (chosen.mean(0) * probabilities.mean(0)).sum();
}

MicroBatch rows(int64_t step, int64_t part, int64_t parts) {
  const int64_t count = 48 / parts;
  const at::Tensor i = torch::arange(part * count, (part + 1) * count) + step * 48;
  const at::Tensor x = (i.unsqueeze(1) * torch::arange(1, 17) * 0.37).sin();
  return make_micro_batch(x, (i * i) % 8);
}

Losses train(Communicator& world, const ParallelConfig& config,
             const std::shared_ptr<Experts>& net) {
  const auto step = [](Experts& experts, const MicroBatch& batch, const BlockContext& context) {
    const auto [scores, probabilities] = experts.forward(batch.input_ids);
    return F::cross_entropy(scores, batch.labels) +
           0.01 * balance_loss(all_gather(probabilities, context));
  };
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_callable(net, step, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  return train_steps(world, *strategy, rows);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, std::make_shared<Experts>, train);
}
