// SPDX-License-Identifier: MIT
// LibTorch's losses: means over rows, over elements, and of class weights.
#include "stranger.h"

namespace {

using namespace strangers;

struct Net : nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    up = register_module("up", nn::Linear(6, 5));
    down = register_module("down", nn::Linear(5, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))); }
  nn::Linear up{nullptr}, down{nullptr};
};

std::vector<MicroBatch> rows(bool classes) {
  Draw draw(9);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    steps.push_back(make_micro_batch(draw.normal({12, 6}),
                                     classes ? draw.integers(3, {12}) : draw.normal({12, 3})));
  }
  return steps;
}

at::Tensor squared_error(const at::Tensor& output, const MicroBatch& batch) {
  return F::mse_loss(output, batch.labels);
}

const Registered mean_losses(
    program<Net>("mean_losses", {.steps = rows(/*classes=*/false),
                                 .mean =
                                     [](Net& net, const MicroBatch& batch) {
                                       return squared_error(net.forward(batch.input_ids), batch);
                                     },
                                 .model =
                                     [](const std::shared_ptr<Net>& net) {
                                       return from_module(net, squared_error,
                                                          {.reduction = LossReduction::kMean});
                                     }}));

at::Tensor weighted(Net& net, const MicroBatch& batch) {
  return F::cross_entropy(net.forward(batch.input_ids), batch.labels,
                          F::CrossEntropyFuncOptions().weight(torch::tensor({0.2f, 3.0f, 1.0f})));
}
LossResult weighted_step(Net& net, const MicroBatch& batch) {
  const at::Tensor weights = torch::tensor({0.2f, 3.0f, 1.0f});
  return {weighted(net, batch), weights.index_select(0, batch.labels).sum()};
}

const Registered class_weights(program<Net>("class_weights",
                                            {.steps = rows(/*classes=*/true),
                                             .mean = weighted,
                                             .model = [](const std::shared_ptr<Net>& net) {
                                               return from_callable(
                                                   net, weighted_step,
                                                   {.reduction = LossReduction::kMean});
                                             }}));

}  // namespace
