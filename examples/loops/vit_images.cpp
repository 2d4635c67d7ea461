// SPDX-License-Identifier: MIT
// A vision transformer with image patches as tokens. Layers are blocks, for zero3, fsdp and
// pipelines.
#include "program.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWidth = 16, kPatches = 16;

struct PatchesImpl : nn::Cloneable<PatchesImpl> {
  PatchesImpl() { reset(); }
  void reset() override {
    cut = register_module("cut", nn::Conv2d(nn::Conv2dOptions(3, kWidth, 4).stride(4)));
    token = register_parameter("token", torch::randn({1, 1, kWidth}) * 0.02);
    places = register_parameter("places", torch::randn({1, kPatches + 1, kWidth}) * 0.02);
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor pieces = cut(images).flatten(2).transpose(1, 2);
    return torch::cat({token.expand({images.size(0), 1, kWidth}), pieces}, 1) + places;
  }
  nn::Conv2d cut{nullptr};
  at::Tensor token, places;
};
TORCH_MODULE(Patches);

struct LayerImpl : nn::Cloneable<LayerImpl> {
  LayerImpl() { reset(); }
  void reset() override {
    encoder = register_module(
        "encoder",
        nn::TransformerEncoderLayer(
            nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(32).dropout(0)));
  }
  at::Tensor forward(const at::Tensor& x) { return encoder(x.transpose(0, 1)).transpose(0, 1); }
  nn::TransformerEncoderLayer encoder{nullptr};
};
TORCH_MODULE(Layer);

at::Tensor first_token(const at::Tensor& x) { return x.select(1, 0); }

nn::Sequential vit() {
  return nn::Sequential(Patches(), Layer(), Layer(), nn::Functional(first_token),
                        nn::Linear(kWidth, 5));
}

at::Tensor loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores, batch.labels);
}

MicroBatch images(int64_t step, int64_t part, int64_t parts) {
  const int64_t count = 24 / parts;
  const at::Tensor i = torch::arange(part * count, (part + 1) * count) + step * 24;
  const at::Tensor waves = torch::arange(3 * 16 * 16).view({1, 3, 16, 16}) * 0.01;
  return make_micro_batch(((i % 5 + 1).view({-1, 1, 1, 1}) * waves + i.view({-1, 1, 1, 1})).sin(),
                          i % 5);
}

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  return train_steps(world, *strategy, images, {.count = 10});
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, vit, train); }
