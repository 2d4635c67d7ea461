// How a ShardingStrategy takes over a model: unit by unit, so that no rank ever holds more than one
// unit it does not keep.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "backends/common/agreement.h"
#include "lib/comm/operation_scope.h"
#include "lib/sharding/unit_grouping.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void validate(const ModelSpec& model, const PrecisionConfig& precision) {
  auto supported = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  check(supported(precision.parameter) && supported(precision.gradient_dtype()) &&
            supported(precision.reduce_dtype()),
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

// The copy of a parameter whose owner is on another stage.
void become_copy(Parameter& parameter, const std::string& block, const TiedParameter& tie) {
  const Parameter& owner = *tie.copy;
  check(parameter.tensor.sizes() == owner.tensor.sizes() &&
            parameter.placement.shard == owner.placement.shard,
        ErrorCode::kInvalidArgument, "tied parameters differ in shape: ", tie.owner_block, ".",
        tie.owner_parameter, " ", owner.tensor.sizes(), " and ", block, ".", parameter.name, " ",
        parameter.tensor.sizes());
  parameter.tensor.set_data(owner.tensor.detach());
  parameter.tensor.set_requires_grad(owner.tensor.requires_grad());
  parameter.weight_decay = owner.weight_decay;
}

}  // namespace

// The units that are not complete, and the aliases met so far.
struct ShardingStrategy::ModelInMaking {
  struct Alias {
    const TiedParameter* tie;
    size_t block_index;
    at::Tensor handle;
    bool blank_gradient;
  };
  UnitGrouping grouping;
  HeldValues held = {};
  std::vector<Alias> aliases = {};
  std::set<const TiedParameter*> ties_met = {};  // by the parameter that lies here
};

void ShardingStrategy::set_mesh(const DeviceMesh& mesh) {
  check(blocks_.empty() && &mesh.axis(Axis::kData) == &data_, ErrorCode::kInternal, name(),
        ": set_mesh() comes before attach(), with the mesh of the data axis");
  mesh_ = &mesh;
  sharers_ = mesh.extent(Axis::kPipeline) * mesh.extent(Axis::kTensor);
  if (sharers_ > 1) world_ = &mesh.world();  // else the data axis, whose operations come in order
  sharer_ = mesh.coordinate(Axis::kPipeline) * mesh.extent(Axis::kTensor) +
            mesh.coordinate(Axis::kTensor);
}

void ShardingStrategy::attach(const ModelSpec& model, const BuildContext& context,
                              const OptimizerFactory& optimizer) {
  check(blocks_.empty(), ErrorCode::kInternal, name(), ": attach() was called twice");
  const InPhase phase("attach");
  validate(model, config_.precision);
  check(context.device.type() == data_.device().type(), ErrorCode::kInvalidArgument, name(),
        ": the model's device is ", context.device, " but the ", data_.transport(),
        " communicator works on ", data_.device());
  at::NoGradGuard no_grad;
  require_same_blocks(model, data_);
  has_loss_ = model.has_loss;
  seed_ = context.seed;
  steps_begun_ = at::zeros({}, at::kLong);
  // Handles stay valid while units_ grows: the stores refer to the vector, not to its elements.
  parameters_ = make_parameters();
  const UnitOptimizerContext optimizer_context{units_, shards_->rank(), config_.precision.parameter,
                                               data_.device(),
                                               expected_numel(model) / shards_->size()};
  optimizer_ = placement_ ? placement_(optimizer_context)
                          : std::make_unique<DeviceOptimizer>(optimizer_context);
  ModelInMaking making{
      UnitGrouping(cut().unit_numel, [this](const UnitMembers& members) { add_unit(members); })};
  for (size_t i = 0; i < model.block_count(); ++i) add_block(model, i, context, making);
  making.held.require_equal();
  for (const TiedParameter& tie : model.tied) {
    const bool of_owner = tie.holders != nullptr && tie.copy == nullptr;
    check(making.ties_met.contains(&tie), ErrorCode::kInvalidArgument, "tied parameter ",
          of_owner ? tie.owner_block : tie.alias_block, ".",
          of_owner ? tie.owner_parameter : tie.alias_parameter, " does not exist in the model");
  }
  tie(making);
  for (const std::vector<size_t>& units : units_of_block_) {
    std::vector<size_t>& trained = trained_units_of_block_.emplace_back(units);
    std::erase_if(trained, [&](size_t unit) { return units_[unit].frozen; });
  }
  parameters_->finalize();
  make_wire();
  gradients_ = make_gradients();
  learning_rate_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(data_.device()));
  optimizer_->prepare(*parameters_, *gradients_, optimizer);
  if (placement_ || replicas_ != nullptr) {
    gradients_->on_reduced([this](size_t unit) { gradient_reduced(unit); });
  }
  prepare_sums(model);
  count_parameters();
}

void ShardingStrategy::add_block(const ModelSpec& model, size_t index, const BuildContext& context,
                                 ModelInMaking& making) {
  const BlockBuilder& builder = model.blocks[index];
  const std::string& block_name = builder.name;
  const ForTensor of(block_name);
  blocks_.push_back(build_together(builder, context, data_));
  block_names_.push_back(block_name);
  block_sharers_.push_back(builder.sharers);
  units_of_block_.emplace_back();
  std::vector<Parameter> parameters = blocks_.back()->parameters();
  making.held.add(block_name, parameters);
  for (Parameter& parameter : parameters) {
    auto owns = [&](const TiedParameter& tie) {
      return tie.owner_block == block_name && tie.owner_parameter == parameter.name;
    };
    auto aliases = [&](const TiedParameter& tie) {
      return tie.alias_block == block_name && tie.alias_parameter == parameter.name;
    };
    const auto alias = std::find_if(model.tied.begin(), model.tied.end(), [&](const auto& tie) {
      return tie.holders == nullptr && aliases(tie);
    });
    if (alias != model.tied.end()) {
      making.aliases.push_back({&*alias, index, parameter.tensor, parameter.blank_gradient});
      making.ties_met.insert(&*alias);
      continue;
    }
    bool apart = false;  // used in several places
    for (const TiedParameter& tie : model.tied) {
      apart = apart || owns(tie);
      if (tie.holders == nullptr || !(tie.copy == nullptr ? owns(tie) : aliases(tie))) continue;
      if (tie.copy != nullptr) {
        become_copy(parameter, block_name, tie);
        owner_elsewhere_[block_name + "." + parameter.name] =
            tie.owner_block + "." + tie.owner_parameter;
        if (builder.from_first_rank) take_from_first_rank(parameter.tensor, data_);
      }
      auto& holders = parameter.placement.holders;
      making.ties_met.insert(&tie);
      const Holders held{tie.holders, /*partial=*/true};
      if (std::find(holders.begin(), holders.end(), held) == holders.end()) {
        holders.push_back(held);
      }
      apart = true;
    }
    check(parameter.tensor.is_leaf() && parameter.tensor.scalar_type() == at::kFloat,
          ErrorCode::kInvalidArgument, "parameter ", block_name, ".", parameter.name,
          " must be an fp32 leaf tensor");
    parameter.placement.frozen = !parameter.tensor.requires_grad();
    making.grouping.add(index, std::move(parameter), apart);
  }
  making.grouping.end_block(builder.ends_unit || index + 1 == model.block_count());
}

void ShardingStrategy::add_unit(const UnitMembers& members) {
  const Cut how = cut();
  ParameterUnit unit;
  unit.name = block_names_[members.block_of.front()];
  unit.layout =
      FlatLayout(members.parameters, how.shards, how.granularity, how.persistence_threshold);
  unit.uses = static_cast<int>(members.users.size());
  unit.frozen = members.frozen();
  unit.apart = members.apart;
  unit.turn = members.turn;
  at::Tensor full = at::zeros({unit.layout.numel()},
                              members.parameters.front().tensor.options().requires_grad(false));
  for (const auto& entry : unit.layout.entries()) {
    const Parameter& parameter = members.parameters[entry.source];
    view_of(full, entry).copy_(parameter.tensor);
    parameter.tensor.set_data(at::empty({0}, full.options()));  // until finalize() gives it storage
    unit.blocks.push_back(block_names_[members.block_of[entry.source]]);
    unit.handles.push_back({parameter.tensor});
    unit.blank.push_back(parameter.blank_gradient);
  }
  const size_t u = units_.size();
  for (size_t block : members.users) units_of_block_[block].push_back(u);
  units_.push_back(std::move(unit));
  optimizer_->adopt(u, full);
  parameters_->adopt(u, full);
}

void ShardingStrategy::tie(const ModelInMaking& making) {
  for (const auto& [tied, block_index, handle, blank_gradient] : making.aliases) {
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
        handle.set_requires_grad(!units_[u].frozen);
        units_[u].handles[e].push_back(handle);
        units_[u].blank[e] = units_[u].blank[e] && blank_gradient;
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

void ShardingStrategy::count_parameters() {
  for (const auto& unit : units_) parameter_count_ += unit.layout.counted_numel();
  if (sharers_ == 1) return;
  const at::Tensor sum =
      at::full({1}, parameter_count_, at::TensorOptions(at::kLong).device(data_.device()));
  world_->all_reduce(sum).wait();
  parameter_count_ = sum.item<int64_t>() / data_.size();
}

}  // namespace tessera
