// SPDX-License-Identifier: MIT
// Contrastive training of two towers, as in CLIP: every image against the texts of all ranks.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct Towers : nn::Cloneable<Towers> {
  Towers() { reset(); }
  void reset() override {
    image = register_module("image", nn::Linear(32, 16));
    text = register_module("text", nn::EmbeddingBag(100, 16));
    temperature = register_parameter("temperature", torch::tensor(2.0f));
  }
  nn::Linear image{nullptr};
  nn::EmbeddingBag text{nullptr};
  at::Tensor temperature;
};

// all(rows): gathers the rows of all ranks, among which this rank's start at `first`.
template <typename Gather>
at::Tensor clip_loss(Towers& net, const MicroBatch& batch, int64_t first, const Gather& all) {
  const at::Tensor images = F::normalize(net.image(batch.input_ids));
  const at::Tensor texts = F::normalize(net.text(batch.get("text")));
  const at::Tensor scale = net.temperature.exp();
  const at::Tensor place = torch::arange(first, first + images.size(0), images.device());
  return (F::cross_entropy(scale * images.matmul(all(texts).t()), place) +
          F::cross_entropy(scale * texts.matmul(all(images).t()), place)) /
         2;
}

// Part `part` of `parts` of a step's rows: words, and a noisy picture of them.
MicroBatch pairs(int64_t step, int64_t part, int64_t parts) {
  const int64_t rows = 48 / parts;
  const at::Tensor words =
      (torch::arange(part * rows * 3, (part + 1) * rows * 3).view({rows, 3}) * 7 + step * 13) % 100;
  const at::Tensor waves = torch::arange(1, 33).to(torch::kFloat) * 0.1;
  const at::Tensor images = (words.to(torch::kFloat).unsqueeze(2) * waves).sin().sum(1);
  return make_micro_batch(images, torch::zeros({rows}), {{"text", words}});
}

Losses train(Communicator& world, const ParallelConfig& config,
             const std::shared_ptr<Towers>& net) {
  const auto step = [](Towers& towers, const MicroBatch& batch, const BlockContext& context) {
    return clip_loss(towers, batch, data_rank(context) * batch.input_ids.size(0),
                     [&](const at::Tensor& rows) { return all_gather(rows, context); });
  };
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_callable(net, step, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  return train_steps(world, *strategy, pairs);
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, std::make_shared<Towers>, train); }
