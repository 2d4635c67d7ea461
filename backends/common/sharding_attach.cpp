// How a ShardingStrategy takes over a model: block by block, so that no rank ever holds more than
// one block it does not keep.
#include <ATen/ATen.h>

#include <set>

#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void validate(const ModelSpec& model, const PrecisionConfig& precision) {
  auto supported = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  check(supported(precision.parameter) && supported(precision.gradient.value_or(at::kFloat)) &&
            supported(precision.reduce.value_or(at::kFloat)),
        ErrorCode::kInvalidArgument, "precision: dtypes must be float32, bfloat16 or float16");
  check(model.block_count() > 0, ErrorCode::kInvalidArgument, "model ", model.name,
        " has no blocks");
  std::set<std::string> names;
  for (const auto& block : model.blocks) {
    check(names.insert(block.name).second, ErrorCode::kInvalidArgument, "model ", model.name,
          " has two blocks named \"", block.name, "\"; block names must be unique");
  }
}

}  // namespace

void ShardingStrategy::attach(const ModelSpec& model, const BuildContext& context,
                              const OptimizerFactory& optimizer) {
  check(blocks_.empty(), ErrorCode::kInternal, name(), ": attach() was called twice");
  validate(model, config_.precision);
  check(context.device.type() == data_.device().type(), ErrorCode::kInvalidArgument, name(),
        ": the model's device is ", context.device, " but the ", data_.transport(),
        " communicator works on ", data_.device());
  at::NoGradGuard no_grad;
  // Handles stay valid while units_ grows: the stores refer to the vector, not to its elements.
  parameters_ = make_parameters();
  Aliases aliases;
  std::map<std::string, size_t> block_index;
  for (size_t i = 0; i < model.block_count(); ++i) {
    block_index[model.blocks[i].name] = i;
    add_block(model, i, context, aliases);
  }
  tie(aliases, block_index);
  parameters_->finalize();
  gradients_ = make_gradients();
  learning_rate_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(data_.device()));
  make_optimizer(optimizer);
}

void ShardingStrategy::add_block(const ModelSpec& model, size_t index, const BuildContext& context,
                                 Aliases& aliases) {
  const std::string& block_name = model.blocks[index].name;
  blocks_.push_back(model.blocks[index].build(context));
  units_of_block_.emplace_back();
  std::vector<Parameter> owned;
  for (auto& parameter : blocks_.back()->parameters()) {
    const TiedParameter* alias = nullptr;
    for (const auto& tie : model.tied) {
      if (tie.alias_block == block_name && tie.alias_parameter == parameter.name) alias = &tie;
    }
    if (alias != nullptr) {
      aliases.emplace_back(alias, parameter.tensor);
    } else {
      check(parameter.tensor.is_leaf() && parameter.tensor.scalar_type() == at::kFloat,
            ErrorCode::kInvalidArgument, "parameter ", block_name, ".", parameter.name,
            " must be an fp32 leaf tensor");
      owned.push_back(std::move(parameter));
    }
  }
  if (owned.empty()) return;

  const Cut how = cut();
  ParameterUnit unit;
  unit.block = block_name;
  unit.layout = FlatLayout(owned, how.shards, how.granularity, how.persistence_threshold);
  at::Tensor full = at::zeros({unit.layout.numel()},
                              at::TensorOptions().dtype(at::kFloat).device(context.device));
  for (const auto& entry : unit.layout.entries()) {
    for (auto& parameter : owned) {
      if (parameter.name != entry.name) continue;
      view_of(full, entry).copy_(parameter.tensor);
      parameter.tensor.set_data(
          at::empty({0}, full.options()));  // until finalize() gives it storage
      unit.handles.push_back({parameter.tensor});
    }
  }
  const size_t u = units_.size();
  units_of_block_.back().push_back(u);
  units_.push_back(std::move(unit));
  if (config_.precision.parameter != at::kFloat) {
    const FlatLayout& layout = units_[u].layout;
    std::vector<at::Tensor> parts;
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      parts.push_back(slice_of(full, layout.owned(segment, data_.rank())));
    }
    masters_.push_back(at::cat(parts));
  } else {
    masters_.emplace_back();
  }
  parameters_->adopt(u, full);
}

void ShardingStrategy::tie(const Aliases& aliases,
                           const std::map<std::string, size_t>& block_index) {
  for (const auto& [tied, handle] : aliases) {
    bool found = false;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].block != tied->owner_block) continue;
      const auto& entries = units_[u].layout.entries();
      for (size_t e = 0; e < entries.size(); ++e) {
        if (entries[e].name != tied->owner_parameter) continue;
        check(handle.sizes() == at::IntArrayRef(entries[e].shape), ErrorCode::kInvalidArgument,
              "tied parameters differ in shape: ", tied->owner_block, ".", tied->owner_parameter,
              " ", at::IntArrayRef(entries[e].shape), " and ", tied->alias_block, ".",
              tied->alias_parameter, " ", handle.sizes());
        units_[u].handles[e].push_back(handle);
        auto& users = units_of_block_[block_index.at(tied->alias_block)];
        if (std::find(users.begin(), users.end(), u) == users.end()) {
          users.push_back(u);
          ++units_[u].uses;
        }
        found = true;
      }
    }
    check(found, ErrorCode::kInvalidArgument, "tied parameter ", tied->owner_block, ".",
          tied->owner_parameter, " does not exist in the model");
  }
}

at::Tensor ShardingStrategy::master(size_t unit, size_t segment) const {
  if (!masters_[unit].defined()) return parameters_->owned(unit, segment);
  return slice_of(masters_[unit], units_[unit].layout.compact(segment));
}

void ShardingStrategy::make_optimizer(const OptimizerFactory& factory) {
  std::vector<OptimizerRange> ranges;
  for (size_t u = 0; u < units_.size(); ++u) {
    const size_t first = ranges.size();
    const FlatLayout& layout = units_[u].layout;
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const int64_t begin = layout.owned(segment, data_.rank()).offset;
      for (const auto& [run, decay] : layout.owned_runs(segment, data_.rank())) {
        OptimizerRange range;
        range.parameter = slice_of(master(u, segment), run, begin);
        range.gradient = slice_of(gradients_->owned(u, segment), run, begin);
        if (masters_[u].defined()) {
          range.low_precision = slice_of(parameters_->owned(u, segment), run, begin);
        }
        range.weight_decay = decay;
        ranges.push_back(std::move(range));
      }
    }
    optimizer_ranges_.emplace_back(first, ranges.size() - first);
  }
  optimizer_ = factory(std::move(ranges));
}

}  // namespace tessera
