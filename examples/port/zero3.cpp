// SPDX-License-Identifier: MIT
// Blobs in one of four corners of an image: a training loop in plain LibTorch.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(first(x));
    x = torch::max_pool2d(torch::relu(second(x)), 2);
    return out(torch::relu(hidden(x.flatten(1))));
  }
  nn::Conv2d first{register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)))};
  nn::Conv2d second{register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)))};
  nn::Linear hidden{register_module("hidden", nn::Linear(16 * 4 * 4, 32))};
  nn::Linear out{register_module("out", nn::Linear(32, 4))};
};
TORCH_MODULE(Net);

struct Data {
  at::Tensor images, labels;
};

Data blobs(int64_t rows) {
  Data data{torch::rand({rows, 1, 8, 8}), torch::randint(4, {rows}, torch::kLong)};
  for (int64_t i = 0; i < rows; ++i) {
    const auto corner = data.labels[i].item<int64_t>();
    data.images[i][0].narrow(0, corner / 2 * 5, 3).narrow(1, corner % 2 * 5, 3).add_(0.4);
  }
  return data;
}

void train_on(tessera::Communicator& world) {
  torch::manual_seed(1);
  const Data train = blobs(512), test = blobs(128);
  Net net;
  nn::CrossEntropyLoss loss_of;
  tessera::ParallelModule model(world, tessera::with_values([] { return Net(); }, net), loss_of,
                                tessera::make_adamw({}),
                                {.strategy = "zero3", .offload = {tessera::Offload::kOptimizer}});
  double sum = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const at::Tensor order = torch::randperm(512);
    sum = 0;
    for (int64_t i = 0; i < 512; i += 64) {
      const at::Tensor rows = order.narrow(0, i, 64).chunk(world.size())[world.rank()];
      const at::Tensor x = train.images.index({rows}), y = train.labels.index({rows});
      const at::Tensor loss = model.train_step(x, y, {.learning_rate = 2e-3, .max_grad_norm = 1});
      sum += loss.item<double>();
    }
  }
  if (!model.copy_to(net, /*rank=*/0)) return;
  net->eval();
  const at::Tensor right = net(test.images).argmax(1).eq(test.labels);
  std::printf("loss %.6f accuracy %.4f\n", sum / 8, right.to(torch::kDouble).mean().item<double>());
  torch::save(net, "net.pt");
}

int main() { return tessera::run_job({}, train_on); }
