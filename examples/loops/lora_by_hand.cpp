// SPDX-License-Identifier: MIT
// LoRA (Hu et al. 2021) in a custom module: parameters without gradient are frozen, without
// optimizer state, and still sharded. add_lora() does it for any model.
#include "classifier.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;

struct LoraLinearImpl : nn::Cloneable<LoraLinearImpl> {
  LoraLinearImpl(int64_t in, int64_t out) : in_(in), out_(out) { reset(); }
  void reset() override {
    base = register_module("base", nn::Linear(in_, out_));
    for (at::Tensor& weight : base->parameters()) weight.requires_grad_(false);
    a = register_parameter("a", torch::randn({kRank, in_}) * 0.1);
    b = register_parameter("b", torch::zeros({out_, kRank}));
  }
  at::Tensor forward(const at::Tensor& x) { return base(x) + x.matmul(a.t()).matmul(b.t()); }

  static constexpr int64_t kRank = 2;
  int64_t in_, out_;
  nn::Linear base{nullptr};
  at::Tensor a, b;
};
TORCH_MODULE(LoraLinear);

nn::Sequential pretrained() {
  return nn::Sequential(LoraLinear(8, 16), nn::Tanh(), LoraLinear(16, 16), nn::Tanh(),
                        LoraLinear(16, 3));
}

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, mean_loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  if (world.rank() == 0) {
    const StrategyMemory memory = strategy->memory();
    std::printf("optimizer: %lld bytes\n", static_cast<long long>(memory.optimizer_bytes));
  }
  return train_steps(world, *strategy, rows);
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, pretrained, train); }
