// SPDX-License-Identifier: MIT
#pragma once
// A program as LibTorch users write it, compared with the same program in tessera's strategies.
#include <tessera/comm/local.h>
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace strangers {

using namespace tessera;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct Layout {
  std::string name;
  ParallelConfig config;
  MeshExtents mesh;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

struct Program {
  std::string name;
  std::function<Trained()> plain;                             // in plain LibTorch, all rows at once
  std::function<Trained(Communicator&, const Layout&)> port;  // rank 0's result is compared
  bool blocks = false;                                        // a pipeline can partition it
  double tolerance = 1e-5;  // relative to losses and a weight's largest value
};

// Registers at static initialisation: `const Registered siamese(program(...))`.
struct Registered {
  explicit Registered(Program program);
};
std::vector<Program>& programs();

// Part `part` of the rows of all ranks.
MicroBatch rows_of(const MicroBatch& all, int64_t part, int64_t parts);
// Random tensors, equal in every run.
class Draw {
 public:
  explicit Draw(uint64_t seed);
  at::Tensor normal(at::IntArrayRef shape);
  at::Tensor integers(int64_t below, at::IntArrayRef shape);

 private:
  at::Generator generator_;
};
// make() with weights that are equal in every call.
template <typename Make>
auto seeded(const Make& make) {
  static std::mutex one_at_a_time;  // LibTorch's generator is process-wide
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(3);
  return make();
}
std::map<std::string, at::Tensor> weights_of(const nn::Module& module);
std::map<std::string, at::Tensor> weights_of(Strategy& strategy, bool several_blocks);

// A network, rows with targets, one optimizer.
template <typename Net>
struct Supervised {
  std::vector<MicroBatch> steps;                            // rows of all ranks
  std::function<at::Tensor(Net&, const MicroBatch&)> mean;  // plain mean loss over all rows
  std::function<ModelSpec(const std::shared_ptr<Net>&)> model;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Net&)> torch_optimizer = [](Net& net) {
    return std::make_unique<torch::optim::SGD>(net.parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  OptimizerFactory optimizer = make_sgd({.momentum = 0.9});
  double learning_rate = 0.1;
  bool blocks = false;
  bool whole = false;  // a rank's rows form one micro-batch, since the loss combines rows
};

template <typename Net>
Trained train_plain(const Supervised<Net>& work) {
  const auto net = seeded([] { return std::make_shared<Net>(); });
  const auto optimizer = work.torch_optimizer(*net);
  Trained trained;
  for (const MicroBatch& batch : work.steps) {
    optimizer->zero_grad();
    const at::Tensor loss = work.mean(*net, batch);
    loss.backward();
    optimizer->step();
    trained.losses.push_back(loss.item<double>());
  }
  trained.weights = weights_of(*net);
  return trained;
}

template <typename Net>
Trained train_under(const Supervised<Net>& work, Communicator& world, const Layout& layout) {
  const DeviceMesh mesh(world, layout.mesh);
  const auto strategy = make_strategy(layout.config, mesh);
  const auto net = seeded([] { return std::make_shared<Net>(); });
  world.barrier();  // attach() also draws from LibTorch's generator
  strategy->attach(work.model(net), {}, work.optimizer);
  const int64_t rank = mesh.axis(Axis::kData).rank(), ranks = mesh.axis(Axis::kData).size();
  const int64_t pieces = work.whole ? 1 : 2;
  Trained trained;
  for (const MicroBatch& batch : work.steps) {
    std::vector<MicroBatch> mine;
    for (int64_t i = 0; i < pieces; ++i) {
      mine.push_back(rows_of(batch, rank * pieces + i, ranks * pieces));
    }
    trained.losses.push_back(strategy->forward_backward(mine).loss.item<double>());
    strategy->optimizer_step(work.learning_rate);
  }
  trained.weights = weights_of(*strategy, work.blocks);
  return trained;
}

template <typename Net>
Program program(const std::string& name, const Supervised<Net>& work) {
  return {.name = name,
          .plain = [work] { return train_plain(work); },
          .port = [work](Communicator& world,
                         const Layout& layout) { return train_under(work, world, layout); },
          .blocks = work.blocks};
}

}  // namespace strangers
