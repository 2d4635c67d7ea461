// SPDX-License-Identifier: MIT
// An encoder-decoder with two inputs: the sentence, and its translation so far.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWords = 30, kWidth = 16;

struct Translator : nn::Module {  // nn::Transformer has no clone() of its own
  Translator() {
    table = register_module("table", nn::Embedding(kWords, kWidth));
    body = register_module(
        "body",
        nn::Transformer(nn::TransformerOptions(kWidth, 4, 1, 1).dim_feedforward(32).dropout(0)));
    head = register_module("head", nn::Linear(kWidth, kWords));
  }
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) {
    const at::Tensor later = nn::TransformerImpl::generate_square_subsequent_mask(target.size(1));
    const at::Tensor in = table(source).transpose(0, 1), out = table(target).transpose(0, 1);
    return head(body->forward(in, out, {}, later.to(out.device())).transpose(0, 1));
  }
  nn::Embedding table{nullptr};
  nn::Transformer body{nullptr};
  nn::Linear head{nullptr};
};

at::Tensor loss(Translator& net, const MicroBatch& batch) {
  const at::Tensor scores = net.forward(batch.input_ids, batch.get("target"));
  return F::cross_entropy(scores.flatten(0, 1), batch.labels.flatten());
}

// The translation is the reversed sentence; 0 starts it, and rows end with ignored labels.
MicroBatch sentences(int64_t step, int64_t part, int64_t parts) {
  const int64_t rows = 24 / parts;
  const at::Tensor i = torch::arange(part * rows, (part + 1) * rows).unsqueeze(1) + step * 24;
  const at::Tensor source = (i * torch::arange(1, 7)) % (kWords - 1) + 1;
  const at::Tensor answer = source.flip({1});
  at::Tensor target = answer.roll(1, 1), labels = answer.clone();
  target.select(1, 0).zero_();
  labels.masked_fill_(torch::arange(6) > i % 3 + 3, kIgnoredLabel);
  return make_micro_batch(source, labels, {{"target", target}});
}

Losses train(Communicator& world, const ParallelConfig& config,
             const std::shared_ptr<Translator>& net) {
  const auto make = [] { return std::make_shared<Translator>(); };
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_callable(with_values(make, net), loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  const int64_t ranks = world.size();
  Losses losses;
  for (int i = 0; i < 20; ++i) {
    // Two micro-batches of different lengths: still the mean over all targets.
    std::vector<MicroBatch> batches;
    for (const int64_t half : {0, 1}) {
      batches.push_back(sentences(i, 2 * world.rank() + half, 2 * ranks).to(world.device()));
    }
    losses.push_back(strategy->forward_backward(batches).loss.item<double>());
    strategy->optimizer_step(/*learning_rate=*/5e-3);
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, std::make_shared<Translator>, train);
}
