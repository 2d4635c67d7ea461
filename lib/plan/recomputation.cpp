// SPDX-License-Identifier: MIT
#include "lib/plan/recomputation.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "lib/plan/rank_planner.h"
#include "tessera/backends/pipeline/partition.h"

namespace tessera {
namespace {

// Least work of a block, as a share of the stage's largest: blocks without matrix products take
// time too.
constexpr double kLeastWork = 0.01;

// FLOPs of a block's forward, up to a common factor.
double work_of(const PlannedLayout& layout, size_t block) {
  return layout.model.blocks[block].cost.flops_per_token;
}

bool is_loss(const PlannedLayout& layout, size_t block) {
  return layout.model.has_loss && block + 1 == layout.model.block_count();
}

// [Note: which blocks run again]
// A block that is not recomputed keeps its saved tensors from forward on. A recomputed one keeps
// its output only, and saved tensors during its own backward. Backward runs from the last block to
// the first, and the peak lies where forward turns to backward. There, recomputing the last block
// coexists with everything saved before it; recomputing the first one does not. So of equal blocks
// those that run first are chosen.
// The last block of a part can be better with many micro-batches in flight: its output is sent, and
// nothing else keeps it. So blocks are chosen one by one, each time the one with the largest
// decrease of the peak per cost; ties go to the first. A part's equal blocks are tried only at both
// ends. A smaller limit's choice contains a larger one's.
class StageChoice {
 public:
  StageChoice(const PlannedLayout& given, const BatchShape& batch, int stage)
      : layout_(given), batch_(batch), coordinate_(largest_rank(given, stage)) {
    layout_.parallel.gradient_checkpointing = false;
    std::vector<size_t> blocks = own_blocks(layout_, stage);
    for (size_t i = 0, part = 0; i < blocks.size(); ++i) {
      if (i > 0 && blocks[i] != blocks[i - 1] + 1) ++part;
      part_of_[blocks[i]] = part;
    }
    std::erase_if(blocks, [&](size_t block) { return is_loss(layout_, block); });
    layout_.parallel.recomputed_blocks.assign(blocks.begin(), blocks.end());
    std::vector<int64_t> least;  // by block, with all of them recomputed
    play([&](const RankPlanner& rank) { least = kept_by(rank, blocks); });
    layout_.parallel.recomputed_blocks.clear();
    peak_ = play([&](const RankPlanner& rank) {
      const std::vector<int64_t> most = kept_by(rank, blocks);
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (most[i] > least[i]) left_.push_back(blocks[i]);
        least_work_ = std::max(least_work_, kLeastWork * work_of(layout_, blocks[i]));
      }
    });
  }

  const MeshCoordinate& coordinate() const { return coordinate_; }
  const std::vector<int64_t>& blocks() const { return layout_.parallel.recomputed_blocks; }
  const Activations& peak() const { return peak_; }
  size_t left() const { return left_.size(); }

  // Recomputes one more block.
  void go_on() {
    size_t best = 0;
    double most = -1;
    Activations peak;
    for (const size_t block : tried()) {
      add(block);
      const Activations with = play();
      std::erase(layout_.parallel.recomputed_blocks, static_cast<int64_t>(block));
      const double less = std::max(0.0, peak_.total() - with.total());
      const double worth = less / std::max(work_of(layout_, block), least_work_);
      if (worth <= most) continue;
      most = worth;
      best = block;
      peak = with;
    }
    add(best);
    std::erase(left_, best);
    peak_ = peak;
  }

 private:
  std::vector<int64_t> kept_by(const RankPlanner& rank, const std::vector<size_t>& blocks) const {
    std::vector<int64_t> kept;
    for (const size_t block : blocks) {
      kept.push_back(rank.kept_by(layout_.model.blocks[block].name));
    }
    return kept;
  }
  // First and last of the equal blocks in each part, in model order.
  std::vector<size_t> tried() const {
    using Kind = std::tuple<size_t, int64_t, double>;  // part and cost
    std::map<Kind, std::pair<size_t, size_t>> ends;
    for (const size_t block : left_) {
      const BlockCost& cost = layout_.model.blocks[block].cost;
      const Kind kind{part_of_.at(block), cost.parameters, cost.flops_per_token};
      const auto [end, added] = ends.try_emplace(kind, block, block);
      end->second.second = block;
    }
    std::vector<size_t> blocks;
    for (const auto& [kind, end] : ends) {
      blocks.push_back(end.first);
      if (end.second != end.first) blocks.push_back(end.second);
    }
    std::ranges::sort(blocks);
    return blocks;
  }
  Activations play(const std::function<void(const RankPlanner&)>& look = {}) const {
    RankPlanner rank(layout_, coordinate_);
    const Activations peak = rank.step(batch_);
    if (look) look(rank);
    return peak;
  }
  void add(size_t block) {
    std::vector<int64_t>& again = layout_.parallel.recomputed_blocks;
    const auto place = static_cast<int64_t>(block);
    again.insert(std::ranges::lower_bound(again, place), place);
  }

  PlannedLayout layout_;
  const BatchShape& batch_;
  const MeshCoordinate coordinate_;
  std::map<size_t, size_t> part_of_;  // contiguous part of the pipeline by block
  std::vector<size_t> left_;
  double least_work_ = 1;
  Activations peak_;
};

// Bytes of a stage's plan as ActivationLimit::memory counts them; on the CPU host memory is
// included.
double bytes_needed(const MemoryPlan& stage, bool on_gpu) {
  return stage.device_bytes() + (on_gpu ? 0 : stage.state.host_bytes);
}

}  // namespace

std::vector<StageRecomputation> choose_recomputation(const PlannedLayout& given,
                                                     const BatchShape& batch, const Card& card,
                                                     const ActivationLimit& limit) {
  PlannedLayout layout = with_passes(given);
  std::vector<StageRecomputation> stages;
  for (int index = 0; index < given.mesh.pipeline; ++index) {
    StageChoice choice(layout, batch, index);
    layout.parallel.gradient_checkpointing = false;
    layout.parallel.recomputed_blocks.clear();
    StageRecomputation best{.blocks = {},
                            .able = static_cast<int64_t>(choice.left()),
                            .plan = plan_rank(layout, batch, card, {}, choice.coordinate())};
    MemoryPlan now = best.plan;
    for (bool is_first = true; !best.fits; is_first = false) {
      hold_activations(layout, batch, choice.peak(), now);
      const double held = now.activations.total() + now.workspace;
      const double over =
          limit.memory > 0 ? bytes_needed(now, layout.on_gpu) - (1 - kMemoryReserve) * limit.memory
                           : held - (1 - kActivationReserve) * limit.bytes;
      if (is_first || over <= 0 || held < best.held()) {
        best.blocks = choice.blocks();
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

std::vector<size_t> own_blocks(const PlannedLayout& layout, int stage) {
  const int stages = layout.mesh.pipeline;
  std::vector<ModelPart> parts{{0, layout.model.block_count(), 0}};
  if (stages > 1) {
    parts = partition(layout.model, layout.parallel.pipeline, stages,
                      layout.parallel.gradient_checkpointing);
  }
  std::vector<size_t> blocks;
  for (size_t part = static_cast<size_t>(stage); part < parts.size();
       part += static_cast<size_t>(stages)) {
    for (size_t i = 0; i < parts[part].count; ++i) blocks.push_back(parts[part].first + i);
  }
  return blocks;
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

double recomputed_share(const PlannedLayout& layout) {
  if (layout.parallel.gradient_checkpointing) return 1;
  if (layout.parallel.recomputed_blocks.empty()) return 0;
  double most = 0;
  for (int stage = 0; stage < layout.mesh.pipeline; ++stage) {
    double all = 0, again = 0;
    for (const size_t block : own_blocks(layout, stage)) {
      if (is_loss(layout, block)) continue;
      all += work_of(layout, block);
      if (layout.parallel.recomputes(block)) again += work_of(layout, block);
    }
    if (all > 0) most = std::max(most, again / all);
  }
  return most;
}

}  // namespace tessera
