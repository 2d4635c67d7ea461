// SPDX-License-Identifier: MIT
// A character-level LSTM.
#include "stranger.h"

namespace {

using namespace strangers;

struct CharRnn : nn::Module {
  at::Tensor forward(const at::Tensor& characters) {
    return head(std::get<0>(lstm(table(characters))));
  }
  nn::Embedding table{register_module("table", nn::Embedding(7, 6))};
  nn::LSTM lstm{
      register_module("lstm", nn::LSTM(nn::LSTMOptions(6, 5).num_layers(2).batch_first(true)))};
  nn::Linear head{register_module("head", nn::Linear(5, 7))};
};

at::Tensor loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores.flatten(0, 1), batch.labels.flatten());
}

std::vector<MicroBatch> texts() {
  Draw draw(4);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor text = draw.integers(7, {12, 9});
    steps.push_back(make_micro_batch(text.slice(1, 0, 8), text.slice(1, 1, 9)));
  }
  return steps;
}

const Registered lstm(program<CharRnn>(
    "lstm",
    {.steps = texts(),
     .mean = [](CharRnn& net,
                const MicroBatch& batch) { return loss(net.forward(batch.input_ids), batch); },
     .model =
         [](const std::shared_ptr<CharRnn>& net) {
           return from_module(with_values([] { return std::make_shared<CharRnn>(); }, net), loss,
                              {.reduction = LossReduction::kMean});
         }}));

}  // namespace
