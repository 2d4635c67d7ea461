// SPDX-License-Identifier: MIT
#include "lib/plan/recomputation.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "lib/plan/block_memory.h"
#include "lib/plan/stage.h"

namespace tessera {
namespace {

// What a block's forward computes, up to a factor that all blocks share.
double work_of(const LayoutPlan& plan, size_t block) {
  return plan.model.blocks[block].cost.flops_per_token;
}

// [Note: which blocks run again] A block that stays holds what its backward needs from its forward
// on; one that runs again holds its output only, and what backward needs while its own backward
// runs. Backward goes from the last block to the first. A stage's peak is at the turn from forward
// to backward, when every block holds its share; there only the number of equal blocks counts. Later
// peaks count what the blocks before hold: when the last block runs again, all that stays before it
// is still there beside it. When the first one does, the others are gone. So of equal blocks those
// that run first are taken; with several micro-batches in flight, and several chunks, they are also
// the ones that are held longest.
std::vector<size_t> in_order_of_choice(const LayoutPlan& plan, const BlockMeter& meter,
                                       const StageLayout& layout, size_t stage) {
  struct Candidate {
    size_t block;
    double saved_per_work;
  };
  std::vector<Candidate> candidates;
  for (const size_t block : layout.blocks[stage]) {
    const bool is_loss = plan.model.has_loss && block + 1 == plan.model.block_count();
    // All stages run a shared embedding together.
    const bool is_shared = plan.parallel.pipeline.shared_vocabulary && block == 0;
    if (is_loss || is_shared || !layout.has_backward[block]) continue;
    const auto saved =
        static_cast<double>(meter.of(block).kept - meter.of(block, /*again=*/true).output);
    if (saved <= 0) continue;
    const double work = work_of(plan, block);
    candidates.push_back(
        {block, work > 0 ? saved / work : std::numeric_limits<double>::infinity()});
  }
  std::ranges::stable_sort(candidates, std::greater(), &Candidate::saved_per_work);
  std::vector<size_t> blocks;
  for (const Candidate& candidate : candidates) blocks.push_back(candidate.block);
  return blocks;
}

// Of a stage's plan, as ActivationLimit::memory counts it: everything is one memory on the CPU.
double needed(const MemoryPlan& stage, bool on_gpu) {
  return stage.device_bytes() + (on_gpu ? 0 : stage.state.host_bytes);
}

}  // namespace

std::vector<StageRecomputation> choose_recomputation(const LayoutPlan& given,
                                                     const BatchShape& batch, const Card& card,
                                                     const ActivationLimit& limit) {
  LayoutPlan plan = given;
  plan.parallel.gradient_checkpointing = false;
  std::vector<int64_t>& again = plan.parallel.recomputed_blocks;
  again.resize(plan.model.block_count());
  std::iota(again.begin(), again.end(), 0);
  const BlockMeter meter(plan, batch, Pass::kStep);
  const StageLayout layout = stage_layout(plan);
  std::vector<StageRecomputation> stages;
  for (int index = 0; index < plan.mesh.pipeline; ++index) {
    again.clear();
    const std::vector<size_t> order =
        in_order_of_choice(plan, meter, layout, static_cast<size_t>(index));
    StageRecomputation best{.able = std::ssize(order),
                            .plan = state_plan(plan, card, index)};
    MemoryPlan now = best.plan;
    for (size_t count = 0; count <= order.size() && !best.fits; ++count) {
      if (count > 0) {
        const auto block = static_cast<int64_t>(order[count - 1]);
        again.insert(std::ranges::lower_bound(again, block), block);
      }
      hold_activations(plan, batch, activations_of_stage(plan, meter, layout, index), now);
      const double held = now.activations.total() + now.workspace;
      const double over = limit.memory > 0 ? needed(now, plan.on_gpu) -
                                                 (1 - kMemoryReserve) * limit.memory
                                           : held - limit.bytes;
      if (count > 0 && over > 0 && held >= best.held()) continue;
      best.blocks = again;
      best.plan = now;
      best.allowed = limit.memory > 0 ? std::max(0.0, held - over) : limit.bytes;
      best.fits = over <= 0;
    }
    stages.push_back(std::move(best));
  }
  return stages;
}

std::vector<int64_t> blocks_of(const std::vector<StageRecomputation>& stages) {
  std::vector<int64_t> blocks;
  for (const StageRecomputation& stage : stages) {
    blocks.insert(blocks.end(), stage.blocks.begin(), stage.blocks.end());
  }
  std::ranges::sort(blocks);
  return blocks;
}

double least_allowed(const std::vector<StageRecomputation>& stages) {
  return std::ranges::min_element(stages, {}, &StageRecomputation::allowed)->allowed;
}

double recomputed_share(const LayoutPlan& plan) {
  if (plan.parallel.gradient_checkpointing) return 1;
  if (plan.parallel.recomputed_blocks.empty()) return 0;
  const StageLayout layout = stage_layout(plan);
  double most = 0;
  for (const std::vector<size_t>& blocks : layout.blocks) {
    double all = 0, again = 0;
    for (const size_t block : blocks) {
      if (plan.model.has_loss && block + 1 == plan.model.block_count()) continue;
      all += work_of(plan, block);
      if (plan.parallel.recomputes(block)) again += work_of(plan, block);
    }
    if (all > 0) most = std::max(most, again / all);
  }
  return most;
}

}  // namespace tessera
