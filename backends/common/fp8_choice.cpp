// SPDX-License-Identifier: MIT
#include "backends/common/fp8_choice.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "backends/common/timed_pass.h"

namespace tessera {
namespace {

constexpr int kWarmUps = 2, kRuns = 5;  // of the runs the fastest counts
constexpr double kLeastSaving = 0.01;

// Without 8 bits, then each layer alone in them.
constexpr auto kTrials = std::to_array<std::pair<double Fp8Times::*, bool Fp8Layers::*>>(
    {{&Fp8Times::off, nullptr},
     {&Fp8Times::qkv, &Fp8Layers::qkv},
     {&Fp8Times::o, &Fp8Layers::o},
     {&Fp8Times::up, &Fp8Layers::up},
     {&Fp8Times::down, &Fp8Layers::down}});

// Index of the block to measure; the number of blocks: none takes 8 bits.
size_t commonest(const ModelSpec& model) {
  std::map<int64_t, size_t> count;  // by parameters
  for (const BlockBuilder& builder : model.blocks) ++count[builder.cost.parameters];
  size_t best = model.block_count();
  for (size_t i = 0; i < model.block_count(); ++i) {
    // Neither the first block, which has no hidden state to begin with, nor the loss.
    if (i == 0 || (model.has_loss && i + 1 == model.block_count())) continue;
    const auto of = [&](size_t block) { return count[model.blocks[block].cost.parameters]; };
    if (best == model.block_count() || of(i) > of(best)) best = i;
  }
  return best;
}

}  // namespace

Fp8Layers fastest_fp8_layers(const Fp8Times& times) {
  Fp8Layers layers;
  for (const auto& [time, layer] : kTrials) {
    if (layer == nullptr) continue;
    layers.*layer = times.*time < (1 - kLeastSaving) * times.off;
  }
  return layers;
}

Fp8Times measure_fp8(const ModelSpec& model, const BuildContext& context, at::ScalarType dtype,
                     const MicroBatch& micro_batch, Communicator& comm) {
  Fp8Times times;
  const size_t measured = commonest(model);
  const MicroBatch batch = micro_batch.to(context.device);
  at::Tensor hidden;
  std::unique_ptr<Block> block;
  for (size_t i = 0; i <= measured && i < model.block_count(); ++i) {
    if (block != nullptr) {
      const at::NoGradGuard no_grad;
      hidden = block->forward(hidden, batch, {.training = true});
    }
    block = build_for_timing(model.blocks[i], context, dtype);
  }
  if (measured == model.block_count() || !block->takes_fp8()) return times;
  for (const auto& [time, layer] : kTrials) {
    BlockContext trial{.training = true, .fp8_layers = {false, false, false, false}};
    if (layer != nullptr) trial.fp8 = Fp8::kTensorwise, trial.fp8_layers.*layer = true;
    for (int run = 0; run < kWarmUps + kRuns; ++run) {
      comm.barrier();  // ranks of a host share its power
      const double seconds = timed_pass(*block, hidden, batch, trial, context.device).seconds;
      if (run < kWarmUps) continue;
      times.*time = run == kWarmUps ? seconds : std::min(times.*time, seconds);
    }
  }
  std::vector<double> all;
  for (const auto& [time, layer] : kTrials) all.push_back(times.*time);
  at::Tensor slowest = at::tensor(all, at::kDouble).to(comm.device());
  comm.all_reduce(slowest, ReduceOp::kMax).wait();
  slowest = slowest.cpu();
  for (size_t i = 0; i < kTrials.size(); ++i) {
    times.*kTrials[i].first = slowest[static_cast<int64_t>(i)].item<double>();
  }
  return times;
}

Fp8Layers measure_fp8_layers(const ModelSpec& model, const BuildContext& context,
                             at::ScalarType dtype, const MicroBatch& micro_batch,
                             Communicator& comm) {
  if (context.device.is_cpu()) return fastest_fp8_layers({});
  return fastest_fp8_layers(measure_fp8(model, context, dtype, micro_batch, comm));
}

void use_fp8_layers(const Fp8Layers& layers, PrecisionConfig& precision) {
  precision.fp8 = layers.any() ? Fp8::kTensorwise : Fp8::kOff;
  precision.fp8_layers = name_of(layers.any() ? layers : Fp8Layers{});
}

}  // namespace tessera
