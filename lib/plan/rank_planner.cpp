// SPDX-License-Identifier: MIT
#include "lib/plan/rank_planner.h"

#include <ATen/ops/argmax.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "backends/common/scoped_gradient_redirect.h"
#include "lib/checkpoint/shard_writer.h"
#include "tessera/core/key_value_cache.h"

namespace tessera {
namespace {

DryStep dry_step_of(const PlannedLayout& layout, const MeshCoordinate& coordinate) {
  return {.model = layout.model,
          .parallel = layout.parallel,
          .optimizer = layout.optimizer,
          .mesh = layout.mesh,
          .coordinate = coordinate,
          .micro_batches = {},
          .device = layout.on_gpu ? at::kCUDA : at::kCPU};
}

StateMemory state_of(const StrategyMemory& memory) {
  StateMemory state;
  state.parameter_bytes = static_cast<double>(memory.parameter_bytes);
  state.gradient_bytes = static_cast<double>(memory.gradient_bytes);
  state.optimizer_bytes = static_cast<double>(memory.optimizer_bytes);
  state.buffer_bytes = static_cast<double>(memory.buffer_bytes);
  state.host_bytes = static_cast<double>(memory.host_bytes);
  state.host_state_bytes = static_cast<double>(memory.host_state_bytes);
  state.host_activation_bytes = static_cast<double>(memory.host_activation_bytes);
  return state;
}

double saved_bytes(const PlannedLayout& layout, std::vector<StateTensor> state) {
  if (!layout.saves_frozen) std::erase_if(state, [](const StateTensor& one) { return one.frozen; });
  int64_t saved = 0;
  for (const ShardPiece& piece : pieces_to_write(state)) saved += piece.nbytes();
  return static_cast<double>(saved);
}

// [Note: parts of activations]
// A purpose is a phase and a block (StepMemory). Memory left by forward is saved for backward.
// Memory left by backward is an activation's gradient, or is saved for deferred weight gradients.
// Messages between stages are neither.
Activations activations_of(const LedgerPeak& peak, double state, double inputs, double cache,
                           const ModelSpec& model) {
  const auto is_block = [&](const std::string& name) {
    return std::ranges::find(model.blocks, name, &BlockBuilder::name) != model.blocks.end();
  };
  Activations parts{.running = static_cast<double>(peak.running)};
  parts.head_runs = model.has_loss && peak.name == model.blocks.back().name;
  for (const LedgerMemory& part : peak.parts) {
    const bool runs = part.phase == peak.phase && part.name == peak.name;
    const auto bytes = static_cast<double>(part.bytes - (runs ? peak.running : 0));
    const std::string_view phase = part.phase;
    double& of = phase == kDeferringPhase                      ? parts.deferred
                 : phase == "backward" || !is_block(part.name) ? parts.gradients
                 : part.name == model.blocks.front().name      ? parts.embedding
                                                               : parts.layers;
    of += std::max(0.0, bytes);
  }
  parts.inputs = inputs;
  parts.cache = cache;
  parts.constants = static_cast<double>(peak.lasting) - state - inputs - cache;
  return parts;
}

}  // namespace

RankPlanner::RankPlanner(const PlannedLayout& layout, const MeshCoordinate& coordinate)
    : layout_(layout), run_(dry_step_of(layout, coordinate), {}, layout.passes.get()) {}

Activations RankPlanner::step(const BatchShape& batch) {
  return run({static_cast<size_t>(layout_.accumulation), batch},
             [](Strategy& strategy, const std::vector<MicroBatch>& batches) {
               strategy.forward_backward(batches);
               strategy.grad_norm_squared();
               strategy.optimizer_step(/*learning_rate=*/1e-3);
             });
}

Activations RankPlanner::evaluation(const BatchShape& batch) {
  return run({batch}, [](Strategy& strategy, const std::vector<MicroBatch>& batches) {
    strategy.evaluate(batches);
  });
}

Activations RankPlanner::generation(const BatchShape& batch) {
  return run({static_cast<size_t>(layout_.mesh.pipeline), batch},
             [](Strategy& strategy, const std::vector<MicroBatch>& batches) {
               strategy.predict(batches, [](const at::Tensor& scores, size_t) {
                 return scores.argmax(/*dim=*/-1);
               });
             });
}

StateMemory RankPlanner::lasting() const { return state_of(run_.strategy().memory()); }

StateMemory RankPlanner::state() {
  StateMemory state = lasting();
  state.traffic = traffic_of(run_.communication(), layout_.model);
  for (const Traffic& traffic : state.traffic) state.comm_bytes_per_step += traffic.bytes;
  run_.guarded([&] { state.saved_bytes = saved_bytes(layout_, run_.strategy().state()); });
  return state;
}

int64_t RankPlanner::kept_by(const std::string& block) const {
  return run_.memory().left_by("forward", block);
}

Activations RankPlanner::run(const std::vector<BatchShape>& shapes, const Passes& passes) {
  const int64_t before = run_.memory().live_bytes();
  std::vector<MicroBatch> batches;
  for (const BatchShape& shape : shapes) batches.push_back(micro_batch_of(shape));
  const int64_t inputs = run_.memory().live_bytes() - before;
  // The fewest micro-batches of a schedule suffice to make persistent state.
  const auto few = static_cast<size_t>(layout_.mesh.pipeline * layout_.parallel.pipeline.chunks);
  const std::vector<MicroBatch> first(batches.begin(),
                                      batches.begin() + std::min(few, batches.size()));
  run_.run([&](Strategy& strategy) { passes(strategy, first); },
           [&](Strategy& strategy) { passes(strategy, batches); });
  int64_t cache = 0;
  for (const MicroBatch& batch : batches) {
    if (batch.decode_state.cache) cache += batch.decode_state.cache->bytes();
  }
  Activations parts =
      activations_of(run_.memory().peak(), lasting().device_bytes(), static_cast<double>(inputs),
                     static_cast<double>(cache), layout_.model);
  parts.defers = run_.memory().saw(kDeferringPhase);
  return parts;
}

}  // namespace tessera
