// SPDX-License-Identifier: MIT
// Trains under any strategy, then serves in plain LibTorch: copies the weights into the module, and
// saves it for torch::load().
#include "classifier.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net,
             const std::string& file) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, mean_loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  const Losses losses = train_steps(world, *strategy, rows);
  nn::Sequential trained = classifier();  // one unsharded copy, on one rank
  copy_to(*strategy, world.rank() == 0 ? trained.get() : nullptr);
  if (world.rank() == 0) torch::save(trained, file);
  return losses;
}

// A server, independent of tessera.
at::Tensor serve(const std::string& file, const at::Tensor& inputs) {
  nn::Sequential net = classifier();
  torch::load(net, file);
  net->eval();
  const torch::NoGradGuard no_grad;
  return net->forward(inputs).argmax(1);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(
      argc, argv, classifier, [](Communicator& world, const auto& config, const auto& net) {
        const std::string file = "train_then_serve.pt";
        const Losses losses = train(world, config, net, file);
        if (world.rank() == 0) {
          const MicroBatch held_out = rows(/*step=*/1000, 0, 1);
          const auto right = serve(file, held_out.input_ids).eq(held_out.labels).sum();
          std::printf("%lld of 48 right\n", static_cast<long long>(right.template item<int64_t>()));
        }
        return losses;
      });
}
