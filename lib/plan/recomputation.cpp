// SPDX-License-Identifier: MIT
#include "lib/plan/recomputation.h"

#include <algorithm>
#include <numeric>

#include "lib/plan/block_memory.h"
#include "lib/plan/stage.h"

namespace tessera {
namespace {

// Blocks without products of matrices take time, too: of the stage's largest one's.
constexpr double kLeastWork = 0.01;

// What a block's forward computes, up to a factor that all blocks share.
double work_of(const LayoutPlan& plan, size_t block) {
  return plan.model.blocks[block].cost.flops_per_token;
}

// [Note: which blocks run again] A block that stays holds what its backward needs from its forward
// on; one that runs again holds its output only, and what backward needs while its own backward
// runs. Backward goes from the last block to the first. The peak is at a turn from forward to
// backward. When the last block runs again, all that stays before it is still there beside it. When
// the first one does, the others are gone. So of equal blocks those that run first are taken. The
// last block of a part can be better where many micro-batches are in flight: its output is sent,
// and nobody else keeps it. So blocks are taken one by one: each time the one that lowers the peak
// most by what it costs, of equals the first. The choice for less memory contains the one for more.
class StageChoice {
 public:
  StageChoice(LayoutPlan& plan, const BlockMeter& meter, const StageLayout& layout, int stage)
      : plan_(plan), meter_(meter), layout_(layout), stage_(stage) {
    plan.parallel.recomputed_blocks.clear();
    for (const size_t block : layout.blocks[static_cast<size_t>(stage)]) {
      const bool is_loss = plan.model.has_loss && block + 1 == plan.model.block_count();
      // All stages run a shared embedding together.
      const bool is_shared = plan.parallel.pipeline.shared_vocabulary && block == 0;
      if (is_loss || is_shared || !layout.has_backward[block]) continue;
      if (saved_by(block) > 0) left_.push_back(block);
      least_work_ = std::max(least_work_, kLeastWork * work_of(plan, block));
    }
    peak_ = play();
  }

  const Activations& peak() const { return peak_; }
  size_t left() const { return left_.size(); }

  // One more block runs again.
  void go_on() {
    size_t best = 0;
    double most = -1;
    Activations peak;
    for (size_t i = 0; i < left_.size(); ++i) {
      add(left_[i]);
      const Activations with = play();
      std::erase(plan_.parallel.recomputed_blocks, static_cast<int64_t>(left_[i]));
      const double less = std::max(0.0, peak_.total() - with.total());
      const double worth = less / std::max(work_of(plan_, left_[i]), least_work_);
      if (worth <= most) continue;
      most = worth;
      best = i;
      peak = with;
    }
    add(left_[best]);
    left_.erase(left_.begin() + static_cast<ptrdiff_t>(best));
    peak_ = peak;
  }

 private:
  double saved_by(size_t block) const {
    return static_cast<double>(meter_.of(block).kept - meter_.of(block, /*again=*/true).output);
  }
  Activations play() const { return activations_of_stage(plan_, meter_, layout_, stage_); }
  void add(size_t block) {
    std::vector<int64_t>& again = plan_.parallel.recomputed_blocks;
    const auto place = static_cast<int64_t>(block);
    again.insert(std::ranges::lower_bound(again, place), place);
  }

  LayoutPlan& plan_;
  const BlockMeter& meter_;
  const StageLayout& layout_;
  const int stage_;
  std::vector<size_t> left_;
  double least_work_ = 1;
  Activations peak_;
};

// Of a stage's plan, as ActivationLimit::memory counts it: everything is one memory on the CPU.
double bytes_needed(const MemoryPlan& stage, bool on_gpu) {
  return stage.device_bytes() + (on_gpu ? 0 : stage.state.host_bytes);
}

}  // namespace

std::vector<StageRecomputation> choose_recomputation(const LayoutPlan& given,
                                                     const BatchShape& batch, const Card& card,
                                                     const ActivationLimit& limit) {
  check_plan(given);
  LayoutPlan plan = given;
  plan.parallel.gradient_checkpointing = false;
  plan.parallel.recomputed_blocks.resize(plan.model.block_count());
  std::iota(plan.parallel.recomputed_blocks.begin(), plan.parallel.recomputed_blocks.end(), 0);
  const BlockMeter meter(plan, batch, Pass::kStep);
  const StageLayout layout = stage_layout(plan);
  std::vector<StageRecomputation> stages;
  for (int index = 0; index < plan.mesh.pipeline; ++index) {
    StageChoice choice(plan, meter, layout, index);
    StageRecomputation best{.able = static_cast<int64_t>(choice.left()),
                            .plan = state_plan(plan, card, index)};
    MemoryPlan now = best.plan;
    for (bool is_first = true; !best.fits; is_first = false) {
      hold_activations(plan, batch, choice.peak(), now);
      const double held = now.activations.total() + now.workspace;
      const double over = limit.memory > 0
                              ? bytes_needed(now, plan.on_gpu) - (1 - kMemoryReserve) * limit.memory
                              : held - (1 - kActivationReserve) * limit.bytes;
      if (is_first || over <= 0 || held < best.held()) {
        best.blocks = plan.parallel.recomputed_blocks;
        best.plan = now;
        best.allowed = std::max(0.0, held - over);
        best.fits = over <= 0;
      }
      if (choice.left() == 0) break;
      if (!best.fits) choice.go_on();
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
