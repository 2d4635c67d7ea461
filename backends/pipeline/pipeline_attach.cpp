// SPDX-License-Identifier: MIT
// Attaching a model to a pipeline: this rank's blocks, and parameters tied across stages.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "backends/common/recomputation.h"
#include "backends/pipeline/stage_links.h"
#include "lib/comm/described_tensor.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/meta.h"
#include "lib/core/number_text.h"
#include "lib/optim/matrix_updates.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

Parameter find_parameter(const BlockBuilder& builder, const BuildContext& context,
                         const std::string& name) {
  const auto block = builder.build(context);
  for (Parameter& parameter : builder.parameters_of(*block)) {
    if (parameter.name == name) return parameter;
  }
  fail(ErrorCode::kInvalidArgument, "tied parameter ", builder.name, ".", name,
       " does not exist in the model");
}

// Copy of the parameter that the owner's stage, the first of replicas, passes as `owner`.
// Collective.
std::shared_ptr<const Parameter> copy_of_owner(const std::optional<Parameter>& owner,
                                               Communicator& replicas) {
  DescribedTensor mine;
  if (owner) {
    const TensorShard& shard = owner->placement.shard;
    mine = {concat(owner->weight_decay, " ", owner->fp32_state, " ", owner->tensor.requires_grad(),
                   " ", shard.dim, " ", shard.parts, " ", shard.full_size),
            owner->tensor.detach()};
  }
  const DescribedTensor told = broadcast_described(replicas, /*root=*/0, mine);
  if (owner) return nullptr;
  Parameter copy{"", told.tensor};
  bool trained = true;
  TensorShard& shard = copy.placement.shard;
  reader_of(told.words) >> copy.weight_decay >> copy.fp32_state >> trained >> shard.dim >>
      shard.parts >> shard.full_size;
  copy.tensor.set_requires_grad(trained);
  return std::make_shared<const Parameter>(std::move(copy));
}

}  // namespace

bool Pipeline::is_shared(size_t block) const {
  return everyone_ != nullptr && (block == 0 || block + 1 == block_index_.size());
}

size_t Pipeline::part_of_block(size_t block) const {
  size_t part = 0;
  while (block >= parts_[part].first + parts_[part].count) ++part;
  return part;
}

int Pipeline::stage_of_block(size_t block) const {
  return static_cast<int>(part_of_block(block)) % pipeline_.size();
}

void Pipeline::attach(const ModelSpec& given, const BuildContext& context,
                      const OptimizerFactory& optimizer) {
  check(parts_.empty(), ErrorCode::kInternal, name(), ": attach() was called twice");
  ModelSpec model = with_marked_matrices(transform_ ? transform_(given) : given, optimizer);
  const InPhase phase("attach");
  check(inner_->sharers() >= pipeline_.size(), ErrorCode::kInternal, name(),
        ": its inner strategy was not given the mesh (ShardingSetup::mesh)");
  check(model.has_loss, ErrorCode::kInvalidArgument, "model ", model.name,
        " has no loss; a pipeline needs the whole model");
  check(!context.device.is_meta() || context.output_of, ErrorCode::kInvalidArgument, name(),
        ": on meta nobody can say what another stage gives; use dry_step(), or set "
        "BuildContext::output_of");
  output_of_ = context.output_of;
  if (context.device.is_meta()) {
    const MetaMemoryCounter apart;  // not counted for this rank
    gives_divisor_ = model.blocks.back().build({.device = at::kMeta})->gives_divisor();
  }
  parts_ = partition(model, config_.pipeline, pipeline_.size(), config_.gradient_checkpointing);
  mark_recomputed(config_, model);
  for (size_t i = 0; i < model.block_count(); ++i) {
    check(block_index_.emplace(model.blocks[i].name, i).second, ErrorCode::kInvalidArgument,
          "model ", model.name, " has two blocks named \"", model.blocks[i].name,
          "\"; block names must be unique");
  }
  for (const auto& tie : model.tied) {
    for (const auto& [block, parameter] : {std::pair(&tie.owner_block, &tie.owner_parameter),
                                           std::pair(&tie.alias_block, &tie.alias_parameter)}) {
      check(block_index_.contains(*block), ErrorCode::kInvalidArgument, "tied parameter ", *block,
            ".", *parameter, " does not exist in the model");
    }
  }
  ModelSpec mine = own_blocks(model);
  if (config_.pipeline.shared_vocabulary) share_ends(model, mine);
  share_tied_parameters(model, context, mine);
  inner_->attach(mine, context, optimizer);
  links_->connect(/*wraps_around=*/config_.pipeline.chunks > 1, everyone_.get());
}

ModelSpec Pipeline::own_blocks(const ModelSpec& model) {
  std::vector<size_t> indices;
  const bool with_ends = config_.pipeline.shared_vocabulary;
  if (with_ends) indices.push_back(0);
  for (size_t part = static_cast<size_t>(pipeline_.rank()); part < parts_.size();
       part += static_cast<size_t>(pipeline_.size())) {
    chunks_.emplace_back(indices.size(), parts_[part].count);
    for (size_t i = 0; i < parts_[part].count; ++i) indices.push_back(parts_[part].first + i);
  }
  if (with_ends) indices.push_back(model.block_count() - 1);
  ModelSpec mine = model.subset(indices);
  // Chunks run at different times, so a unit stays inside one of them.
  for (const auto& [first, count] : chunks_) mine.blocks[first + count - 1].ends_unit = true;
  if (with_ends) mine.blocks.front().ends_unit = true;
  if (mine.has_loss && mine.block_count() > 1 &&
      !backward_follows_loss(config_.pipeline.schedule)) {
    mine.blocks[mine.block_count() - 2].ends_unit = true;
  }
  return mine;
}

// Replaces the first and the last block by this stage's slices of them.
void Pipeline::share_ends(const ModelSpec& model, ModelSpec& mine) {
  const size_t last = model.block_count() - 1;
  for (const auto& tie : model.tied) {
    auto is_end = [&](const std::string& block) { return block_index_.at(block) % last == 0; };
    check(is_end(tie.owner_block) == is_end(tie.alias_block), ErrorCode::kInvalidArgument,
          "tied parameter ", tie.owner_block, ".", tie.owner_parameter, " and ", tie.alias_block,
          ".", tie.alias_parameter, ": all stages share one block, but not the other");
  }
  everyone_ = pipeline_.split_by([](int rank) { return Communicator::SplitArguments{0, rank}; });
  for (BlockBuilder* builder : {&mine.blocks.front(), &mine.blocks.back()}) {
    *builder = shared_by(*everyone_, std::move(*builder));
    builder->cost.parameters /= pipeline_.size();
  }
}

// Ties across stages, in the same order on all ranks.
void Pipeline::share_tied_parameters(const ModelSpec& model, const BuildContext& context,
                                     ModelSpec& mine) {
  std::map<std::pair<std::string, std::string>, std::vector<const TiedParameter*>> by_owner;
  for (const auto& tie : model.tied) {
    if (is_shared(block_index_.at(tie.owner_block))) continue;  // every stage has both
    by_owner[{tie.owner_block, tie.owner_parameter}].push_back(&tie);
  }
  const int me = pipeline_.rank();
  for (const auto& [owner, ties] : by_owner) {
    const BlockBuilder& builder = model.blocks[block_index_.at(owner.first)];
    const int owner_stage = stage_of_block(block_index_.at(owner.first));
    std::set<int> stages{owner_stage};
    const TiedParameter* first = nullptr;  // first alias on this rank: the others alias it in turn
    for (const TiedParameter* tie : ties) {
      const int stage = stage_of_block(block_index_.at(tie->alias_block));
      stages.insert(stage);
      if (stage != me || me == owner_stage) continue;
      if (first == nullptr) {
        first = tie;
      } else {
        mine.tied.push_back(
            {first->alias_block, first->alias_parameter, tie->alias_block, tie->alias_parameter});
      }
    }
    if (stages.size() == 1) continue;
    auto replicas = pipeline_.split_by([&](int stage) {
      return Communicator::SplitArguments{stages.contains(stage) ? 0 : 1,
                                          stage == owner_stage ? 0 : stage + 1};
    });
    if (!stages.contains(me)) continue;
    std::optional<Parameter> given;
    const bool alone = context.device.is_meta();  // the owner's stage does not exist
    if (me == owner_stage || alone) given = find_parameter(builder, context, owner.second);
    TiedParameter held = first == nullptr ? *ties.front() : *first;
    held.replicas = replicas.get();
    if (!alone) held.copy = copy_of_owner(given, *replicas);
    if (alone && me != owner_stage) held.copy = std::make_shared<Parameter>(std::move(*given));
    mine.tied.push_back(std::move(held));
    tie_replicas_.push_back(std::move(replicas));
  }
}

}  // namespace tessera
