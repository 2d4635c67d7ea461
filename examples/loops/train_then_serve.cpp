// Trains under any strategy, then serves in plain LibTorch: the weights go into the module, the
// module into a file that torch::load() reads.
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

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net,
             const std::string& file) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  Losses losses;
  for (int i = 0; i < 20; ++i) {
    const std::vector batches{rows(i, world.rank(), world.size()).to(world.device())};
    losses.push_back(strategy->forward_backward(batches).loss.item<double>());
    strategy->optimizer_step(/*learning_rate=*/1e-2);
  }
  nn::Sequential trained = classifier();  // one whole copy, on one rank
  copy_to(*strategy, world.rank() == 0 ? trained.get() : nullptr);
  if (world.rank() == 0) torch::save(trained, file);
  return losses;
}

// What a server does, which knows nothing of tessera.
at::Tensor serve(const std::string& file, const at::Tensor& inputs) {
  nn::Sequential net = classifier();
  torch::load(net, file);
  net->eval();
  const torch::NoGradGuard no_grad;
  return net->forward(inputs).argmax(1);
}

}  // namespace

int main(int argc, char** argv) {
  torch::manual_seed(1);
  const nn::Sequential net = classifier();
  return run_program(argc, argv, [&](Communicator& world, const ParallelConfig& config) {
    const std::string file = "train_then_serve.pt";
    const Losses losses = train(world, config, net, file);
    if (world.rank() == 0) {
      const MicroBatch held_out = rows(/*step=*/1000, 0, 1);
      const auto right = serve(file, held_out.input_ids).eq(held_out.labels).sum();
      std::printf("%lld of 48 right\n", static_cast<long long>(right.item<int64_t>()));
    }
    return losses;
  });
}
