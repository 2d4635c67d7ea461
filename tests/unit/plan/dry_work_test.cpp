// SPDX-License-Identifier: MIT
// FLOPs of a dry step, by block and phase.
#include <torch/torch.h>

#include "tessera/model/adapters.h"
#include "tessera/plan/dry_step.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

namespace nn = torch::nn;

constexpr int64_t kWorkRows = 2, kSequence = 8, kMicroBatches = 3;
constexpr double kTokens = kWorkRows * kSequence * kMicroBatches;

StepLedger dry(const ModelSpec& model, const ParallelConfig& parallel = {.strategy = "single"},
               at::DeviceType device = at::kCPU) {
  const at::Tensor ids = at::arange(kWorkRows * kSequence).view({kWorkRows, kSequence});
  return dry_step({.model = model,
                   .parallel = parallel,
                   .micro_batches = {kMicroBatches, make_micro_batch(ids, ids + 1)},
                   .device = device});
}

LedgerWork work_of(const StepLedger& ledger, const std::string& phase, const std::string& block) {
  for (const LedgerWork& work : ledger.work) {
    if (work.phase == phase && work.name == block) return work;
  }
  return {};
}

ModelSpec toy(const std::string& family) {
  DecoderConfig config = testing::sized(
      family, {.vocabulary = 512, .hidden = 128, .heads = 4, .layers = 3, .inner = 352});
  config.expert_inner = config.inner;
  return testing::causal(config);
}

// Ledger for the first of several images.
StepLedger dry_of(const nn::Sequential& net, const at::Tensor& images) {
  const auto loss = [](const at::Tensor& scores, const MicroBatch& batch) {
    return nn::functional::cross_entropy(scores.flatten(1), batch.labels);
  };
  return dry_step(
      {.model = from_sequential(net, loss, {.reduction = LossReduction::kMean}),
       .parallel = {.strategy = "single"},
       .micro_batches = {make_micro_batch(images, torch::zeros({images.size(0)}, at::kLong))}});
}

}  // namespace

TEST_CASE("a dry step counts the products that a block's cost says, forward and backward") {
  for (const std::string family : {"bloom", "llama", "qwen3_moe", "olmoe"}) {
    const ModelSpec model = toy(family);
    for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
      INFO(family << " on " << device);
      ParallelConfig parallel{.strategy = "single"};
      if (device == at::kCUDA) parallel.precision.parameter = at::kBFloat16;
      const StepLedger ledger = dry(model, parallel, device);
      for (size_t i = 1; i + 1 < model.blocks.size(); ++i) {
        const BlockBuilder& block = model.blocks[i];
        if (!block.name.starts_with("h.") && block.name.find("layers") == std::string::npos)
          continue;
        INFO(block.name);
        const double whole = block.cost.flops_per_token * kTokens;
        const LedgerWork forward = work_of(ledger, "forward", block.name),
                         backward = work_of(ledger, "backward", block.name);
        // Attention is not in the cost; it is small here.
        CHECK(forward.flops == Approx(whole / 3).epsilon(0.02));
        CHECK(backward.flops == Approx(2 * whole / 3).epsilon(0.02));
        CHECK(forward.flops + backward.flops >= whole);
        CHECK(forward.bytes > 0);
        CHECK(backward.bytes > 0);
      }
    }
  }
}

TEST_CASE("blocks that run again in backward count their forward products twice") {
  const ModelSpec model = toy("bloom");
  const std::string& block = model.blocks[2].name;
  const StepLedger kept = dry(model),
                   again = dry(model, {.strategy = "single", .gradient_checkpointing = true});
  const double forward = work_of(kept, "forward", block).flops;
  CHECK(work_of(again, "forward", block).flops == forward);
  CHECK(work_of(again, "backward", block).flops ==
        work_of(kept, "backward", block).flops + forward);
}

TEST_CASE("products of LibTorch's layers count, wherever they are called") {
  nn::Sequential linear(nn::Linear(8, 32), nn::Tanh(),
                        nn::Linear(nn::LinearOptions(32, 4).bias(false)));
  const StepLedger ledger = dry_of(linear, torch::zeros({6, 8}));
  CHECK(work_of(ledger, "forward", "0").flops == 2 * 6 * 8 * 32);
  // The input's gradient is not needed.
  CHECK(work_of(ledger, "backward", "0").flops == 2 * 6 * 8 * 32);
  CHECK(work_of(ledger, "forward", "2").flops == 2 * 6 * 32 * 4);

  nn::Sequential images(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)),
                        nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 2, 2)));
  const StepLedger of_images = dry_of(images, torch::zeros({2, 3, 8, 8}));
  const double first = 2.0 * 2 * 4 * 4 * (8 * 3 * 3 * 3),
               second = 2.0 * 2 * 4 * 4 * (8 * 2 * 2 * 2);
  CHECK(work_of(of_images, "forward", "0").flops == first);
  CHECK(work_of(of_images, "backward", "0").flops == first);
  CHECK(work_of(of_images, "forward", "1").flops == second);
}
