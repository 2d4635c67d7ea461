// A loop of your own: accumulation, clipping, a schedule and evaluations, all in sight.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

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

double rate(int step) { return 1e-2 * std::min(1.0, (step + 1) / 5.0) * (1 - step / 40.0); }

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const int rank = world.rank(), ranks = world.size();
  const DeviceMesh mesh(world, {.data = ranks});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  Losses losses;
  for (int step = 0; step < 20; ++step) {
    // Two micro-batches: their gradients add up, on this rank and over all.
    std::vector<MicroBatch> batches;
    for (const int half : {0, 1}) {
      batches.push_back(rows(step, 2 * rank + half, 2 * ranks).to(world.device()));
    }
    const StepResult result = strategy->forward_backward(batches);
    const at::Tensor norm = strategy->grad_norm_squared().sqrt();  // over all ranks
    strategy->scale_gradients((0.1 / (norm + 1e-6)).clamp_max(1));
    strategy->optimizer_step(rate(step));
    losses.push_back(result.loss.item<double>());
    if (step % 10 == 9) {
      const std::vector held_out{rows(1000, rank, ranks).to(world.device())};
      losses.push_back(strategy->evaluate(held_out).loss.item<double>());
    }
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
