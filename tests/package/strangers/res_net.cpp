// SPDX-License-Identifier: MIT
// A residual network whose BatchNorm sees the rows of all ranks.
#include "stranger.h"

namespace {

using namespace strangers;

struct ResNet : nn::Cloneable<ResNet> {
  ResNet() { reset(); }
  void reset() override {
    stem = register_module("stem", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)));
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)));
    bn = register_module("bn", nn::BatchNorm2d(4));
    head = register_module("head", nn::Linear(4, 3));
  }
  // norm: applies bn.
  template <typename Norm>
  at::Tensor forward(const at::Tensor& images, const Norm& norm) {
    const at::Tensor x = torch::relu(stem(images));
    return head((x + torch::relu(norm(bn, conv(x)))).mean({2, 3}));
  }
  nn::Conv2d stem{nullptr}, conv{nullptr};
  nn::BatchNorm2d bn{nullptr};
  nn::Linear head{nullptr};
};

at::Tensor mean(ResNet& net, const MicroBatch& batch) {
  const auto of_these_rows = [](nn::BatchNorm2d& bn, const at::Tensor& x) { return bn(x); };
  return F::cross_entropy(net.forward(batch.input_ids, of_these_rows), batch.labels);
}

at::Tensor step(ResNet& net, const MicroBatch& batch, const BlockContext& context) {
  const auto of_all_rows = [&](nn::BatchNorm2d& bn, const at::Tensor& x) {
    return global_batch_norm(bn, x, context);
  };
  return F::cross_entropy(net.forward(batch.input_ids, of_all_rows), batch.labels);
}

std::vector<MicroBatch> images() {
  Draw draw(2);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    steps.push_back(make_micro_batch(draw.normal({12, 1, 6, 6}), draw.integers(3, {12})));
  }
  return steps;
}

const Registered res_net(program<ResNet>("res_net", {.steps = images(),
                                                     .mean = mean,
                                                     .model =
                                                         [](const std::shared_ptr<ResNet>& net) {
                                                           return from_callable(
                                                               net, step,
                                                               {.running_statistics_of_rank = 0,
                                                                .reduction = LossReduction::kMean});
                                                         },
                                                     .whole = true}));

}  // namespace
