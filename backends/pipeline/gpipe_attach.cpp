// How a pipeline takes over a model: which blocks this rank builds, and how tied parameters live on
// several stages.
#include <ATen/ATen.h>

#include <algorithm>

#include "backends/pipeline/stage_links.h"
#include "tessera/backends/pipeline/gpipe.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

Parameter& find_parameter(std::vector<Parameter>& parameters, const std::string& block,
                          const std::string& name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const Parameter& p) { return p.name == name; });
  check(found != parameters.end(), ErrorCode::kInvalidArgument, "tied parameter ", block, ".", name,
        " does not exist in the model");
  return *found;
}

// A block one of whose parameters lives on other stages too.
class SharingBlock : public Block {
 public:
  SharingBlock(std::unique_ptr<Block> block, Parameter shared)
      : block_(std::move(block)), shared_(std::move(shared)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    return block_->forward(hidden, micro_batch);
  }
  std::vector<Parameter> parameters() override {
    std::vector<Parameter> all = block_->parameters();
    for (Parameter& parameter : all) {
      if (parameter.name == shared_.name) parameter = shared_;
    }
    return all;
  }

 private:
  std::unique_ptr<Block> block_;
  Parameter shared_;
};

// Of an owner that `holders` stages hold.
void share_owner(BlockBuilder& builder, const std::string& parameter, int holders) {
  builder.build = [build = builder.build, block = builder.name, parameter,
                   holders](const BuildContext& context) -> std::unique_ptr<Block> {
    auto built = build(context);
    auto parameters = built->parameters();
    Parameter shared = find_parameter(parameters, block, parameter);
    shared.copies *= holders;
    return std::make_unique<SharingBlock>(std::move(built), std::move(shared));
  };
}

// Of an alias whose owner is on another stage: it becomes a parameter with the owner's initial
// values and treatment. on_built is told its elements.
void adopt_alias(BlockBuilder& builder, const BlockBuilder& owner, const TiedParameter& tie,
                 int holders, std::function<void(int64_t)> on_built) {
  builder.build = [build = builder.build, owner, tie, holders,
                   on_built](const BuildContext& context) -> std::unique_ptr<Block> {
    auto built = build(context);
    auto parameters = built->parameters();
    Parameter shared = find_parameter(parameters, tie.alias_block, tie.alias_parameter);
    auto owner_parameters = owner.build(context)->parameters();
    const Parameter source = find_parameter(owner_parameters, tie.owner_block, tie.owner_parameter);
    check(shared.tensor.sizes() == source.tensor.sizes(), ErrorCode::kInvalidArgument,
          "tied parameters differ in shape: ", tie.owner_block, ".", tie.owner_parameter, " ",
          source.tensor.sizes(), " and ", tie.alias_block, ".", tie.alias_parameter, " ",
          shared.tensor.sizes());
    shared.tensor.set_data(source.tensor.detach());
    shared.weight_decay = source.weight_decay;
    shared.shard = source.shard;
    shared.copies = source.copies * holders;
    on_built(shared.shard.whole_numel(shared.tensor.sizes()));
    return std::make_unique<SharingBlock>(std::move(built), std::move(shared));
  };
}

}  // namespace

bool GPipe::is_shared(size_t block) const {
  return everyone_ != nullptr && (block == 0 || block + 1 == block_index_.size());
}

size_t GPipe::part_of_block(size_t block) const {
  size_t part = 0;
  while (block >= parts_[part].first + parts_[part].count) ++part;
  return part;
}

int GPipe::stage_of_block(size_t block) const {
  return static_cast<int>(part_of_block(block)) % pipeline_.size();
}

void GPipe::attach(const ModelSpec& model, const BuildContext& context,
                   const OptimizerFactory& optimizer) {
  check(parts_.empty(), ErrorCode::kInternal, name(), ": attach() was called twice");
  check(model.has_loss, ErrorCode::kInvalidArgument, "model ", model.name,
        " has no loss; a pipeline needs the whole model");
  parts_ = partition(model, config_.pipeline, pipeline_.size(), config_.gradient_checkpointing);
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
  share_tied_parameters(model, mine);
  inner_->attach(mine, context, optimizer);
  links_->connect(/*wraps_around=*/config_.pipeline.chunks > 1, everyone_.get());
  at::Tensor count = at::full({1}, inner_->parameter_count() - counted_elsewhere_,
                              at::TensorOptions(at::kLong).device(pipeline_.device()));
  pipeline_.all_reduce(count).wait();
  parameter_count_ = count.item<int64_t>();
}

ModelSpec GPipe::own_blocks(const ModelSpec& model) {
  std::vector<size_t> indices;
  const bool with_ends = config_.pipeline.shared_vocabulary;
  if (with_ends) indices.push_back(0);
  for (size_t part = static_cast<size_t>(pipeline_.rank()); part < parts_.size();
       part += static_cast<size_t>(pipeline_.size())) {
    chunks_.emplace_back(indices.size(), parts_[part].count);
    for (size_t i = 0; i < parts_[part].count; ++i) indices.push_back(parts_[part].first + i);
  }
  if (with_ends) indices.push_back(model.block_count() - 1);
  return model.subset(indices);
}

// The first and the last block become this stage's part of them.
void GPipe::share_ends(const ModelSpec& model, ModelSpec& mine) {
  const size_t last = model.block_count() - 1;
  for (const auto& tie : model.tied) {
    auto is_end = [&](const std::string& block) { return block_index_.at(block) % last == 0; };
    check(is_end(tie.owner_block) == is_end(tie.alias_block), ErrorCode::kInvalidArgument,
          "tied parameter ", tie.owner_block, ".", tie.owner_parameter, " and ", tie.alias_block,
          ".", tie.alias_parameter, ": all stages share one block, but not the other");
  }
  everyone_ = pipeline_.split(0, pipeline_.rank());
  for (BlockBuilder* builder : {&mine.blocks.front(), &mine.blocks.back()}) {
    *builder = shared_by(*everyone_, std::move(*builder));
    builder->apart = true;
    builder->cost.parameters /= pipeline_.size();
    if (pipeline_.rank() == 0) continue;  // which counts them
    builder->build = [this, tied = model.tied, name = builder->name,
                      build = builder->build](const BuildContext& context) {
      auto block = build(context);
      for (const Parameter& parameter : block->parameters()) {
        const bool alias = std::any_of(tied.begin(), tied.end(), [&](const TiedParameter& tie) {
          return tie.alias_block == name && tie.alias_parameter == parameter.name;
        });
        if (!alias) counted_elsewhere_ += parameter.shard.whole_numel(parameter.tensor.sizes());
      }
      return block;
    };
  }
}

void GPipe::share_tied_parameters(const ModelSpec& model, ModelSpec& mine) {
  std::map<TensorName, std::vector<const TiedParameter*>> by_owner;
  for (const auto& tie : model.tied) {
    if (is_shared(block_index_.at(tie.owner_block))) continue;  // every stage has both
    by_owner[{tie.owner_block, tie.owner_parameter}].push_back(&tie);
  }
  auto builder_of = [](auto& spec, const std::string& name) -> auto& {
    return *std::find_if(spec.blocks.begin(), spec.blocks.end(),
                         [&](const BlockBuilder& block) { return block.name == name; });
  };
  const int me = pipeline_.rank();
  for (const auto& [owner, ties] : by_owner) {
    const int owner_stage = stage_of_block(block_index_.at(owner.first));
    std::set<int> stages{owner_stage};
    const TiedParameter* first = nullptr;  // of this rank's aliases: the others alias it in turn
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
    auto holders = pipeline_.split(stages.contains(me) ? 0 : 1, me);
    if (!stages.contains(me)) continue;
    holders_.push_back(std::move(holders));
    const int count = static_cast<int>(stages.size());
    if (me == owner_stage) {
      share_owner(builder_of(mine, owner.first), owner.second, count);
      mine.shared.push_back({owner.first, owner.second, holders_.back().get()});
    } else {
      adopt_alias(builder_of(mine, first->alias_block), builder_of(model, owner.first), *first,
                  count, [this](int64_t numel) { counted_elsewhere_ += numel; });
      mine.shared.push_back({first->alias_block, first->alias_parameter, holders_.back().get()});
      aliases_.insert({first->alias_block, first->alias_parameter});
    }
  }
}

}  // namespace tessera
