#include "lib/plan/stage.h"

#include <algorithm>

#include "tessera/backends/pipeline/schedule.h"

namespace tessera {

void play_schedule(const LayoutPlan& plan, int index, const std::vector<ModelPart>& parts,
                   const std::vector<StageBlock>& blocks, Stage& stage) {
  const PipelineConfig& pipeline = plan.parallel.pipeline;
  const auto micro_batches = static_cast<int>(plan.accumulation);
  PipelineSchedule schedule =
      plan.mesh.pipeline > 1 ? make_schedule(pipeline.schedule, plan.mesh.pipeline, micro_batches,
                                             pipeline.chunks, pipeline.shared_vocabulary)
                             : one_f_one_b(1, micro_batches);
  const size_t last = plan.model.block_count() - 1;
  auto visit = [&](size_t block) {
    const auto place = std::ranges::find(blocks, block, &StageBlock::index) - blocks.begin();
    for (size_t unit : stage.units_of_block[static_cast<size_t>(place)])
      stage.visits.push_back(unit);
  };
  for (const PipelineAction& action : schedule.stages[static_cast<size_t>(index)]) {
    if (action.of_all_stages()) {
      const bool head = action.kind == PipelineAction::Kind::kHead;
      const bool back = action.kind == PipelineAction::Kind::kEmbedBackward;
      visit(head ? last : 0);
      stage.broadcasts += head || back ? 1 : 0;
      stage.forwards_of_head += head ? 1 : 0;
      const bool again = back && plan.parallel.gradient_checkpointing;
      stage.forwards_of_embedding += (!head && !back) || again ? 1 : 0;
      continue;
    }
    const ModelPart& part = parts[static_cast<size_t>(schedule.part(index, action))];
    const bool forward = action.kind == PipelineAction::Kind::kForward;
    stage.messages += output_of(schedule, index, action).has_value() ? 1 : 0;
    for (size_t i = 0; i < part.count; ++i) {
      const size_t block = forward ? part.first + i : part.first + part.count - 1 - i;
      if (!forward && block == last) continue;  // the loss runs both ways at once
      visit(block);
      const bool again = !forward && plan.parallel.gradient_checkpointing;
      if (!forward && !again) continue;
      ++(block == 0      ? stage.forwards_of_embedding
         : block == last ? stage.forwards_of_head
                         : stage.forwards_of_layers);
    }
  }
}

Stage make_stage(const LayoutPlan& plan, int index) {
  std::vector<ModelPart> parts{{0, plan.model.block_count(), 0}};
  if (plan.mesh.pipeline > 1) {
    parts = partition(plan.model, plan.parallel.pipeline, plan.mesh.pipeline,
                      plan.parallel.gradient_checkpointing);
  }
  const bool shared = plan.parallel.pipeline.shared_vocabulary;
  std::vector<StageBlock> blocks;
  if (shared) blocks.push_back({0, /*ends_part=*/true});
  for (size_t p = 0; p < parts.size(); ++p) {
    if (p % static_cast<size_t>(plan.mesh.pipeline) != static_cast<size_t>(index)) continue;
    for (size_t i = 0; i < parts[p].count; ++i) {
      blocks.push_back({parts[p].first + i, i + 1 == parts[p].count});
    }
  }
  if (shared) blocks.push_back({plan.model.block_count() - 1, true});
  Stage stage;
  make_units(plan, blocks, stage);
  play_schedule(plan, index, parts, blocks, stage);
  return stage;
}

}  // namespace tessera
