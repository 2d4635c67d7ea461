// SPDX-License-Identifier: MIT
// User-written loops on GPUs, one process per rank, compared with plain LibTorch on the CPU:
//   mpirun -n RANKS loops_check STRATEGY [offload]
// A GAN through Strategy::forward() (backward runs on autograd's device thread), rows of all ranks
// in one loss, and gradients accumulated over calls, read and changed by name.
#include <torch/optim/sgd.h>

#include <cstdio>

#include "tessera/comm/launch.h"
#include "tessera/model/all_gather.h"
#include "tessera/model/callable.h"
#include "tests/support/forward_loops.h"

namespace tessera::testing {
namespace {

constexpr double kTolerance = 1e-4;  // the devices' kernels sum in different orders

void require_near(const char* what, const Weights& actual, const Weights& expected) {
  const std::string differs = difference(actual, expected, kTolerance);
  test::require(differs == "", what, ": ", differs);
}

torch::optim::SGD sgd_of(const nn::Sequential& module) {
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(kRate).momentum(kMomentum);
  return torch::optim::SGD(module->parameters(), options);
}

class Job {
 public:
  Job(Communicator& world, const ParallelConfig& config)
      : world_(world), mesh_(world, {.data = world.size()}), config_(config) {}

  std::unique_ptr<Strategy> attached(const ModelSpec& model) {
    auto strategy = make_strategy(config_, mesh_);
    strategy->attach(model, {.device = world_.device()}, make_sgd({.momentum = kMomentum}));
    return strategy;
  }
  MicroBatch own(const at::Tensor& whole) {
    return rows(whole.chunk(world_.size())[static_cast<size_t>(world_.rank())].to(world_.device()));
  }

 private:
  Communicator& world_;
  DeviceMesh mesh_;
  ParallelConfig config_;
};

void check_gan(Job& job) {
  nn::Sequential g = generator(), d = discriminator();
  torch::optim::SGD of_g = sgd_of(g), of_d = sgd_of(d);
  const auto make = job.attached(from_sequential(generator(), no_loss));
  const auto judge = job.attached(from_sequential(discriminator(), no_loss));
  for (int64_t step = 0; step < kSteps; ++step) {
    of_d.zero_grad();
    const at::Tensor fake = g->forward(noise(step));
    (bce(d->forward(real(step)), 1) + bce(d->forward(fake.detach()), 0)).backward();
    of_d.step();
    of_g.zero_grad();
    bce(d->forward(fake), 1).backward();
    of_g.step();

    const at::Tensor made = make->forward(job.own(noise(step)));
    (bce(judge->forward(job.own(real(step))), 1) + bce(judge->forward(rows(made.detach())), 0))
        .backward();
    judge->optimizer_step(kRate);
    bce(judge->forward(rows(made), {.parameter_gradients = false}), 1).backward();
    make->optimizer_step(kRate);
  }
  require_near("generator", parameters_of(*make), weights_of(*g));
  require_near("discriminator", parameters_of(*judge), weights_of(*d));
}

// Loss of one rank with the rows of all, each against all.
at::Tensor apart(const at::Tensor& mine, const at::Tensor& all) {
  return at::matmul(mine, all.t()).square().mean();
}

void check_all_gather(Job& job) {
  nn::Sequential net = generator();
  torch::optim::SGD sgd = sgd_of(net);
  const auto strategy = job.attached(from_callable(
      generator(),
      [](nn::SequentialImpl& module, const MicroBatch& batch, const BlockContext& context) {
        const at::Tensor mine = module.forward(batch.input_ids);
        return apart(mine, all_gather(mine, context));
      },
      {.reduction = LossReduction::kMean}));
  for (int64_t step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const at::Tensor all = net->forward(noise(step));
    apart(all, all).backward();
    sgd.step();
    strategy->forward_backward(std::vector{job.own(noise(step))});
    strategy->optimizer_step(kRate);
  }
  Weights expected;
  for (const auto& [name, value] : weights_of(*net)) expected["module." + name] = value;
  require_near("all_gather", parameters_of(*strategy), expected);
}

void check_calls(Job& job) {
  nn::Sequential net = generator();
  torch::optim::SGD sgd = sgd_of(net);
  const auto squares = [](const at::Tensor& output, const MicroBatch&) {
    return output.square().sum();
  };
  const auto strategy = job.attached(from_sequential(generator(), squares));
  for (int64_t step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const at::Tensor both = at::cat({noise(step), noise(step + 7)});
    (net->forward(both).square().sum() / both.size(0)).backward();
    for (const at::Tensor& p : net->parameters()) p.mutable_grad().mul_(0.5).add_(0.01);
    sgd.step();
    strategy->forward_backward(std::vector{job.own(noise(step))}, {.accumulate = true});
    strategy->forward_backward(std::vector{job.own(noise(step + 7))}, {.accumulate = true});
    strategy->for_each_gradient(
        [](const GradientPiece& piece) { piece.value.mul_(0.5).add_(0.01); });
    strategy->optimizer_step(kRate);
  }
  require_near("calls", parameters_of(*strategy), weights_of(*net));
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty() || arguments.size() > 2) return 2;
  return tessera::run_job({.transport = "nccl"}, [&](tessera::Communicator& world) {
    tessera::ParallelConfig config{.strategy = arguments[0], .persistence_threshold = 8};
    if (arguments.size() == 2) config.offload.what = tessera::Offload::kOptimizer;
    tessera::testing::Job job(world, config);
    tessera::testing::check_gan(job);
    tessera::testing::check_all_gather(job);
    tessera::testing::check_calls(job);
    if (world.rank() == 0) std::printf("loops agree under %s\n", arguments[0].c_str());
  });
}
