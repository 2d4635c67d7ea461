// SPDX-License-Identifier: MIT
#pragma once
// Small networks, layouts and pairs of strategies for tests of Strategy::forward().
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/watchdog.hpp"

namespace tessera::testing {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr double kRate = 0.1, kMomentum = 0.9;
constexpr int64_t kRows = 12, kSteps = 3;

inline const std::vector<std::string> kForwardLayouts{
    "strategy=single",
    "strategy=ddp data=2",
    "strategy=ddp data=3 bucket_bytes=300",
    "strategy=zero1 data=2",
    "strategy=zero2 data=2",
    "strategy=zero2 data=2 reduce_at_boundary=1",
    "strategy=zero3 data=3 persistence_threshold=8",
    "strategy=fsdp data=2 gradient_checkpointing=1",
    "strategy=fsdp data=2 reshard_after_forward=0 fsdp_unit_numel=100",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=device gradient_checkpointing=1",
    "strategy=ddp data=2 offload=activations gradient_checkpointing=1",
};

inline nn::Sequential generator() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(3, 7), nn::Tanh(), nn::Linear(7, 4));
}
inline nn::Sequential discriminator() {
  torch::manual_seed(2);
  return nn::Sequential(nn::Linear(4, 9), nn::LayerNorm(nn::LayerNormOptions({9})), nn::Tanh(),
                        nn::Linear(9, 1));
}

inline at::Tensor no_loss(const at::Tensor& output, const MicroBatch&) { return output.sum() * 0; }

inline at::Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}
inline at::Tensor noise(int64_t step) { return drawn({kRows, 3}, 50 + step); }
inline at::Tensor real(int64_t step) { return drawn({kRows, 4}, 80 + step) + 0.5; }

inline at::Tensor bce(const at::Tensor& scores, double target) {
  return F::binary_cross_entropy_with_logits(scores, at::full_like(scores, target));
}

// By name; unsharded values for a module.
using Weights = std::map<std::string, at::Tensor>;
inline Weights weights_of(const nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}
inline Weights without_module(Named named) {
  Weights weights;
  for (auto& [name, value] : named) {
    weights[name.starts_with("module.") ? name.substr(7) : name] = value;
  }
  return weights;
}

// Two strategies on one mesh.
class Two {
 public:
  Two(Communicator& world, const FuzzCase& layout, const ModelSpec& first, const ModelSpec& second)
      : mesh_(world, layout.mesh),
        first_(make_strategy(layout.parallel, mesh_)),
        second_(make_strategy(layout.parallel, mesh_)) {
    const OptimizerFactory sgd = make_sgd({.momentum = kMomentum});
    first_->attach(first, {.seed = 3}, sgd);
    second_->attach(second, {.seed = 4}, sgd);
  }
  Strategy& first() { return *first_; }
  Strategy& second() { return *second_; }
  Communicator& data() { return mesh_.axis(Axis::kData); }
  at::Tensor own(const at::Tensor& rows) {
    const int64_t count = rows.size(0) / data().size();
    return rows.narrow(0, count * data().rank(), count);
  }

 private:
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> first_, second_;
};

inline void on_layouts(const std::function<void(Communicator&, const FuzzCase&)>& script) {
  for (const std::string& line : kForwardLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    CHECK_NOTHROW(
        test::run_ranks(layout.ranks(), [&](Communicator& world) { script(world, layout); }));
  }
}

inline void require_equal(const Weights& actual, const Weights& expected) {
  const std::string differs = difference(actual, expected, 1e-5);
  test::require(differs == "", differs);
}

inline void refused(const std::string& says, const std::function<void()>& call) {
  const std::string said = test::require_error(ErrorCode::kInvalidArgument, call, says);
  test::require(said.find(says) != std::string::npos, "it says: ", said);
}

inline MicroBatch rows(const at::Tensor& x) { return make_micro_batch(x, {}); }

}  // namespace tessera::testing
