// SPDX-License-Identifier: MIT
#include "lib/plan/stage.h"

#include <algorithm>

#include "lib/plan/rules.h"
#include "tessera/backends/pipeline/schedule.h"

namespace tessera {
namespace {

PipelineSchedule schedule_of(const LayoutPlan& plan) {
  const PipelineConfig& pipeline = plan.parallel.pipeline;
  const auto micro_batches = static_cast<int>(plan.accumulation);
  if (plan.mesh.pipeline == 1) return one_f_one_b(1, micro_batches);
  return make_schedule(pipeline.schedule, plan.mesh.pipeline, micro_batches, pipeline.chunks,
                       pipeline.shared_vocabulary);
}

// Forward and backward of every micro-batch in the schedule's order.
void play_schedule(const LayoutPlan& plan, int index, const std::vector<ModelPart>& parts,
                   const StageBlocks& blocks, Stage& stage) {
  const size_t last = plan.model.block_count() - 1;
  auto count = [&](size_t block, Visits& visits) {
    ++(block == 0 ? visits.embedding : block == last ? visits.head : visits.layers);
  };
  auto visit = [&](size_t block, Visits& visits) {
    const auto place = std::ranges::find(blocks, block, &StageBlock::index) - blocks.begin();
    const auto& units = stage.units_of_block[static_cast<size_t>(place)];
    stage.visits.insert(stage.visits.end(), units.begin(), units.end());
    count(block, visits);
  };
  // Backward ends where nothing before is trained; only the model's first blocks can tell.
  const size_t run = plan.parallel.pipeline.shared_vocabulary ? 1 : parts.front().count;
  size_t first_trained = 0;
  auto is_frozen = [&](size_t unit) { return stage.units[unit].frozen; };
  while (blocks.front().index == 0 && first_trained < run &&
         std::ranges::all_of(stage.units_of_block[first_trained], is_frozen)) {
    ++first_trained;
  }
  auto visit_backward = [&](size_t block) {
    if (block < first_trained || block == last) return;  // the loss runs both ways at once
    visit(block, stage.backwards);
    if (plan.parallel.recomputes(block)) count(block, stage.forwards);
  };
  const PipelineSchedule schedule = schedule_of(plan);
  for (const PipelineAction& action : schedule.stages[static_cast<size_t>(index)]) {
    using Kind = PipelineAction::Kind;
    stage.messages += output_of(schedule, index, action).has_value() ? 1 : 0;
    stage.broadcasts += action.kind == Kind::kHead || action.kind == Kind::kEmbedBackward ? 1 : 0;
    if (action.kind == Kind::kEmbed || action.kind == Kind::kHead) {
      visit(action.kind == Kind::kEmbed ? 0 : last, stage.forwards);
    } else if (action.kind == Kind::kEmbedBackward) {
      visit_backward(0);
    } else if (action.kind != Kind::kWeights) {  // which need no parameters
      const ModelPart& part = parts[static_cast<size_t>(schedule.part(index, action))];
      for (size_t i = 0; i < part.count; ++i) {
        if (action.kind == Kind::kForward) {
          visit(part.first + i, stage.forwards);
        } else {
          visit_backward(part.first + part.count - 1 - i);
        }
      }
    }
  }
}

std::vector<StageBlocks> blocks_of_stages(const LayoutPlan& plan,
                                          const std::vector<ModelPart>& parts) {
  const PipelineConfig& pipeline = plan.parallel.pipeline;
  const bool shared = pipeline.shared_vocabulary;
  const auto stages = static_cast<size_t>(plan.mesh.pipeline);
  const size_t last = plan.model.block_count() - 1;
  const bool loss_apart = stages > 1 && !backward_follows_loss(pipeline.schedule);
  std::vector<StageBlocks> blocks(stages);
  for (StageBlocks& own : blocks) {
    if (shared) own.push_back({0, /*ends_unit=*/true});
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    for (size_t i = 0; i < parts[part].count; ++i) {
      const size_t block = parts[part].first + i;
      const bool ends = i + 1 == parts[part].count || plan.model.blocks[block].ends_unit ||
                        (loss_apart && block + 1 == last);
      blocks[part % stages].push_back({block, ends});
    }
  }
  for (StageBlocks& own : blocks) {
    if (shared) own.push_back({last, true});
  }
  return blocks;
}

std::vector<ModelPart> parts_of(const LayoutPlan& plan) {
  if (plan.mesh.pipeline == 1) return {{0, plan.model.block_count(), 0}};
  return partition(plan.model, plan.parallel.pipeline, plan.mesh.pipeline,
                   plan.parallel.gradient_checkpointing);
}

}  // namespace

ModelShapes shapes_of(const LayoutPlan& plan) {
  return model_shapes(plan.model, {.tensor = plan.mesh.tensor,
                                   .sequence_parallel = plan.parallel.sequence_parallel,
                                   .ends = end_ranks(plan)});
}

Stage make_stage(const LayoutPlan& plan, int index) {
  const std::vector<ModelPart> parts = parts_of(plan);
  const std::vector<StageBlocks> blocks = blocks_of_stages(plan, parts);
  Stage stage;
  stage.shapes = shapes_of(plan);
  make_units(plan, blocks, static_cast<size_t>(index), stage);
  play_schedule(plan, index, parts, blocks[static_cast<size_t>(index)], stage);
  return stage;
}

StageLayout stage_layout(const LayoutPlan& plan) {
  StageLayout layout{.schedule = schedule_of(plan), .parts = parts_of(plan)};
  for (const StageBlocks& own : blocks_of_stages(plan, layout.parts)) {
    layout.blocks.emplace_back();
    for (const StageBlock& block : own) layout.blocks.back().push_back(block.index);
  }
  bool trained = false;
  for (const auto& block : shapes_of(plan).blocks) {
    trained = trained || std::ranges::any_of(block, [](const ParameterShape& shape) {
                return !shape.parameter.placement.frozen;
              });
    layout.has_backward.push_back(trained);
  }
  // What an earlier stage hands on may be trained.
  for (size_t part = 1; part < layout.parts.size(); ++part) {
    const ModelPart& begun = layout.parts[part];
    std::fill_n(layout.has_backward.begin() + static_cast<ptrdiff_t>(begun.first), begun.count,
                true);
  }
  return layout;
}

}  // namespace tessera
