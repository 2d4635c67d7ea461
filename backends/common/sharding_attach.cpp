// How a ShardingStrategy takes over a model: unit by unit, so that no rank ever holds more than one
// unit it does not keep.
#include <ATen/ATen.h>

#include <algorithm>
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

// By the blocks' own account; an alias of a tied parameter counts at most like its owner.
int64_t expected_numel(const ModelSpec& model) {
  auto cost = [&](const std::string& name) {
    for (const auto& block : model.blocks) {
      if (block.name == name) return block.cost.parameters;
    }
    return int64_t{0};
  };
  int64_t sum = 0;
  for (const auto& block : model.blocks) sum += block.cost.parameters;
  for (const auto& tie : model.tied) sum -= std::min(cost(tie.owner_block), cost(tie.alias_block));
  return std::max<int64_t>(sum, 0);
}

}  // namespace

// Parameters of consecutive blocks that will be gathered, reduced and updated together.
struct ShardingStrategy::UnitInMaking {
  std::vector<std::string> blocks;  // by parameter: the owning block's name
  std::vector<size_t> users;        // block indices, each once
  std::vector<Parameter> parameters;
  int64_t numel = 0;
  Communicator* holders = nullptr;

  void add(const std::string& block, size_t block_index, Parameter parameter) {
    if (users.empty() || users.back() != block_index) users.push_back(block_index);
    blocks.push_back(block);
    numel += parameter.tensor.numel();
    parameters.push_back(std::move(parameter));
  }
};

struct ShardingStrategy::Aliases {
  struct Alias {
    const TiedParameter* tie;
    size_t block_index;
    at::Tensor handle;
  };
  std::vector<Alias> list;
};

void ShardingStrategy::attach(const ModelSpec& model, const BuildContext& context,
                              const OptimizerFactory& optimizer) {
  check(blocks_.empty(), ErrorCode::kInternal, name(), ": attach() was called twice");
  validate(model, config_.precision);
  check(context.device.type() == data_.device().type(), ErrorCode::kInvalidArgument, name(),
        ": the model's device is ", context.device, " but the ", data_.transport(),
        " communicator works on ", data_.device());
  at::NoGradGuard no_grad;
  has_loss_ = model.has_loss;
  // Handles stay valid while units_ grows: the stores refer to the vector, not to its elements.
  parameters_ = make_parameters();
  const UnitOptimizerContext optimizer_context{units_, shards_->rank(), config_.precision.parameter,
                                               data_.device(),
                                               expected_numel(model) / shards_->size()};
  optimizer_ = placement_ ? placement_(optimizer_context)
                          : std::make_unique<DeviceOptimizer>(optimizer_context);
  Aliases aliases;
  UnitInMaking open;
  for (size_t i = 0; i < model.block_count(); ++i) add_block(model, i, context, open, aliases);
  close_unit(open);
  tie(aliases);
  parameters_->finalize();
  gradients_ = make_gradients();
  learning_rate_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(data_.device()));
  optimizer_->prepare(*parameters_, *gradients_, optimizer);
  if (placement_ || replicas_ != nullptr) {
    gradients_->on_reduced([this](size_t unit) { gradient_reduced(unit); });
  }
  prepare_norm();
}

void ShardingStrategy::add_block(const ModelSpec& model, size_t index, const BuildContext& context,
                                 UnitInMaking& open, Aliases& aliases) {
  const std::string& block_name = model.blocks[index].name;
  const bool apart = model.blocks[index].apart;
  if (apart) close_unit(open);
  blocks_.push_back(model.blocks[index].build(context));
  units_of_block_.emplace_back();
  for (auto& parameter : blocks_.back()->parameters()) {
    auto is_alias = [&](const TiedParameter& tie) {
      return tie.alias_block == block_name && tie.alias_parameter == parameter.name;
    };
    const auto alias = std::find_if(model.tied.begin(), model.tied.end(), is_alias);
    if (alias != model.tied.end()) {
      aliases.list.push_back({&*alias, index, parameter.tensor});
      continue;
    }
    check(parameter.tensor.is_leaf() && parameter.tensor.scalar_type() == at::kFloat,
          ErrorCode::kInvalidArgument, "parameter ", block_name, ".", parameter.name,
          " must be an fp32 leaf tensor");
    const bool tied = std::any_of(model.tied.begin(), model.tied.end(), [&](const auto& tie) {
      return tie.owner_block == block_name && tie.owner_parameter == parameter.name;
    });
    const auto shared = std::find_if(model.shared.begin(), model.shared.end(), [&](const auto& s) {
      return s.block == block_name && s.parameter == parameter.name;
    });
    if (tied || shared != model.shared.end()) {  // used in several places: a unit of its own
      UnitInMaking own;
      own.holders = shared == model.shared.end() ? nullptr : shared->holders;
      own.add(block_name, index, std::move(parameter));
      close_unit(own);
    } else {
      open.add(block_name, index, std::move(parameter));
    }
  }
  if (apart || open.numel >= cut().unit_numel) close_unit(open);
}

void ShardingStrategy::close_unit(UnitInMaking& making) {
  if (making.parameters.empty()) return;
  const Cut how = cut();
  ParameterUnit unit;
  unit.name = making.blocks.front();
  unit.layout =
      FlatLayout(making.parameters, how.shards, how.granularity, how.persistence_threshold);
  unit.uses = static_cast<int>(making.users.size());
  at::Tensor full = at::zeros({unit.layout.numel()},
                              making.parameters.front().tensor.options().requires_grad(false));
  for (const auto& entry : unit.layout.entries()) {
    const Parameter& parameter = making.parameters[entry.source];
    view_of(full, entry).copy_(parameter.tensor);
    parameter.tensor.set_data(at::empty({0}, full.options()));  // until finalize() gives it storage
    unit.blocks.push_back(making.blocks[entry.source]);
    unit.handles.push_back({parameter.tensor});
  }
  const size_t u = units_.size();
  for (size_t block : making.users) units_of_block_[block].push_back(u);
  if (making.holders != nullptr) shared_units_.emplace_back(u, making.holders);
  units_.push_back(std::move(unit));
  optimizer_->adopt(u, full);
  parameters_->adopt(u, full);
  making = {};
}

void ShardingStrategy::tie(const Aliases& aliases) {
  for (const auto& [tied, block_index, handle] : aliases.list) {
    bool found = false;
    for (size_t u = 0; u < units_.size() && !found; ++u) {
      const auto& entries = units_[u].layout.entries();
      for (size_t e = 0; e < entries.size() && !found; ++e) {
        if (units_[u].blocks[e] != tied->owner_block || entries[e].name != tied->owner_parameter) {
          continue;
        }
        check(handle.sizes() == at::IntArrayRef(entries[e].shape), ErrorCode::kInvalidArgument,
              "tied parameters differ in shape: ", tied->owner_block, ".", tied->owner_parameter,
              " ", at::IntArrayRef(entries[e].shape), " and ", tied->alias_block, ".",
              tied->alias_parameter, " ", handle.sizes());
        units_[u].handles[e].push_back(handle);
        auto& users = units_of_block_[block_index];
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

void ShardingStrategy::prepare_norm() {
  for (size_t u = 0; u < units_.size(); ++u) {
    const FlatLayout& layout = units_[u].layout;
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const at::Tensor owned = gradients_->owned(u, segment);
      const int64_t begin = layout.owned(segment, shards_->rank()).offset;
      int64_t first = begin;  // neighbouring runs with the same copies are one term
      const auto runs = layout.owned_runs(segment, shards_->rank());
      for (size_t i = 0; i < runs.size(); ++i) {
        const int64_t end = runs[i].range.offset + runs[i].range.numel;
        if (i + 1 < runs.size() && runs[i + 1].copies == runs[i].copies) continue;
        norm_terms_[runs[i].copies].push_back(slice_of(owned, {first, end - first}, begin));
        first = end;
      }
    }
  }
}

}  // namespace tessera
