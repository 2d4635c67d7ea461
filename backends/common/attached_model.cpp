// SPDX-License-Identifier: MIT
#include "backends/common/attached_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "backends/common/agreement.h"
#include "backends/common/coded_products.h"
#include "backends/common/frozen_scales.h"
#include "lib/comm/described_tensor.h"
#include "lib/comm/operation_scope.h"
#include "lib/sharding/messages.h"
#include "lib/sharding/unit_grouping.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Initialises a tied parameter from its owner on another stage.
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
  parameter.fp32_state = owner.fp32_state;
}

// Builder of an AttachedModel, with incomplete units and aliases met so far.
class Maker {
 public:
  Maker(const ModelSpec& spec, const BuildContext& context, const ShardingRules& rules,
        FrozenDtype frozen, const ProcessGroups& ranks, const UnitTaker& take, AttachedModel& model)
      : spec_(spec),
        context_(context),
        rules_(rules),
        frozen_(frozen),
        ranks_(ranks),
        data_(ranks.data),
        take_(take),
        model_(model),
        grouping_(
            rules, [this](const UnitMembers& members) { add_unit(members); }, ranks.expert()) {}

  void make(Communicator* tensor);  // tensor: the tensor axis, or null

 private:
  struct Alias {
    const TiedParameter* tie;
    size_t block_index;
    at::Tensor handle;
    bool lazy_zero_gradient;
  };
  void add_block(size_t index);
  void add_parameter(size_t index, Parameter parameter, const FrozenScales& scales,
                     const CodedProducts& products);
  // Records which stages hold it. Returns whether it has several uses.
  bool share(const BlockBuilder& builder, Parameter& parameter);
  void add_unit(const UnitMembers& members);
  void place(ParameterUnit& unit, const FlatEntry& entry) const;
  void tie(const Alias& alias);
  void check_ties_met() const;
  void list_messages();

  const ModelSpec& spec_;
  const BuildContext& context_;
  const ShardingRules& rules_;
  FrozenDtype frozen_;
  const ProcessGroups& ranks_;
  Communicator& data_;
  const UnitTaker& take_;
  AttachedModel& model_;
  UnitGrouping grouping_;
  HeldValues held_;
  size_t products_ = 0;  // that are gathered as codes
  std::vector<Alias> aliases_;
  std::set<const TiedParameter*> ties_met_;  // keyed by this rank's parameter
};

void Maker::make(Communicator* tensor) {
  model_.has_loss = spec_.has_loss;
  model_.seed = context_.seed;
  for (const TiedParameter& tie : spec_.tied) {
    if (tie.replicas != nullptr) model_.replicas_of_ties.push_back(tie.replicas);
  }
  for (size_t i = 0; i < spec_.block_count(); ++i) add_block(i);
  held_.require_equal(tensor);
  check_ties_met();
  for (const Alias& alias : aliases_) tie(alias);
  for (ParameterUnit& unit : model_.units) unit.ends_with_rows &= unit.uses == 2 && !unit.frozen;
  for (const std::vector<size_t>& units : model_.units_of_block) {
    std::vector<size_t>& trained = model_.trained_units_of_block.emplace_back(units);
    std::erase_if(trained, [&](size_t unit) { return model_.units[unit].frozen; });
  }
  list_messages();
}

void Maker::list_messages() {
  const Messages messages(model_.units);
  for (const std::vector<size_t>& units : model_.units_of_block) {
    std::vector<size_t>& of_block = model_.messages_of_block.emplace_back();
    std::vector<size_t>& with_block = model_.units_with_block.emplace_back();
    for (const size_t unit : units) {
      const size_t message = messages.of_unit[unit];
      if (std::ranges::find(of_block, message) != of_block.end()) continue;
      of_block.push_back(message);
      const std::vector<size_t>& together = messages.units[message];
      with_block.insert(with_block.end(), together.begin(), together.end());
    }
    std::ranges::sort(of_block);
  }
}

void Maker::check_ties_met() const {
  for (const TiedParameter& tie : spec_.tied) {
    const bool of_owner = tie.replicas != nullptr && tie.copy == nullptr;
    check(ties_met_.contains(&tie), ErrorCode::kInvalidArgument, "tied parameter ",
          of_owner ? tie.owner_block : tie.alias_block, ".",
          of_owner ? tie.owner_parameter : tie.alias_parameter, " does not exist in the model");
  }
}

void Maker::add_block(size_t index) {
  const BlockBuilder& builder = spec_.blocks[index];
  const ForTensor of(builder.name);
  model_.blocks.push_back(
      build_together(builder, context_, data_, ranks_.expert(), ranks_.expert_holders()));
  model_.names.push_back(builder.name);
  model_.recomputed.push_back(builder.recomputed);
  model_.sharers.push_back(builder.sharers);
  model_.units_of_block.emplace_back();
  std::vector<Parameter> parameters = builder.parameters_of(*model_.blocks.back());
  held_.add(builder.name, parameters);
  FrozenScales scales;
  if (frozen_ == FrozenDtype::kFp8) scales = frozen_scales(*model_.blocks.back(), parameters);
  const CodedProducts products = coded_products(*model_.blocks.back(), parameters, rules_,
                                                tied_to(spec_, builder.name), products_);
  for (Parameter& parameter : parameters) {
    add_parameter(index, std::move(parameter), scales, products);
  }
  grouping_.end_block(builder.ends_unit || index + 1 == spec_.block_count());
}

void Maker::add_parameter(size_t index, Parameter parameter, const FrozenScales& scales,
                          const CodedProducts& products) {
  const BlockBuilder& builder = spec_.blocks[index];
  const auto alias = std::ranges::find_if(spec_.tied, [&](const TiedParameter& tie) {
    return tie.replicas == nullptr && tie.alias_block == builder.name &&
           tie.alias_parameter == parameter.name;
  });
  if (alias != spec_.tied.end()) {
    aliases_.push_back({&*alias, index, parameter.tensor, parameter.lazy_zero_gradient});
    ties_met_.insert(&*alias);
    return;
  }
  const bool apart = share(builder, parameter);
  check(parameter.tensor.is_leaf() && parameter.tensor.scalar_type() == at::kFloat,
        ErrorCode::kInvalidArgument, "parameter ", builder.name, ".", parameter.name,
        " must be an fp32 leaf tensor");
  parameter.placement.frozen = !parameter.tensor.requires_grad();
  const auto scale = scales.find(parameter.name);
  const at::Tensor own = scale == scales.end() ? at::Tensor() : scale->second;
  const auto product = products.find(parameter.name);
  const bool is_coded = product != products.end();
  grouping_.add(index, std::move(parameter), apart, own,
                is_coded ? std::optional(product->second) : std::nullopt);
}

bool Maker::share(const BlockBuilder& builder, Parameter& parameter) {
  bool apart = false;
  for (const TiedParameter& tie : spec_.tied) {
    const bool owns = tie.owner_block == builder.name && tie.owner_parameter == parameter.name;
    const bool aliases = tie.alias_block == builder.name && tie.alias_parameter == parameter.name;
    apart = apart || owns;
    if (tie.replicas == nullptr || !(tie.copy == nullptr ? owns : aliases)) continue;
    if (tie.copy != nullptr) {
      become_copy(parameter, builder.name, tie);
      model_.owner_elsewhere[builder.name + "." + parameter.name] =
          tie.owner_block + "." + tie.owner_parameter;
      if (builder.from_first_rank) take_from_first_rank(parameter.tensor, data_);
    }
    auto& replicas = parameter.placement.replicas;
    ties_met_.insert(&tie);
    const Replicas held{tie.replicas, /*partial=*/true};
    if (std::ranges::find(replicas, held) == replicas.end()) replicas.push_back(held);
    apart = true;
  }
  return apart;
}

void Maker::add_unit(const UnitMembers& members) {
  ParameterUnit unit;
  unit.name = model_.names[members.block_of.front()];
  if (members.of_experts(ranks_.expert())) unit.holders = ranks_.expert_holders();
  const int shards = rules_.shards == 1 ? 1 : ranks_.shards_of(unit).size();
  unit.layout = FlatLayout(members.parameters, shards, rules_.granularity,
                           rules_.persistence_threshold, rules_.state);
  unit.uses = static_cast<int>(members.users.size());
  unit.frozen = members.frozen();
  unit.matrices = members.matrices();
  unit.apart = members.apart;
  unit.gather_group = members.gather_group;
  std::vector<at::Tensor> scales;  // in the layout's order
  at::Tensor full = at::zeros({unit.layout.numel()},
                              members.parameters.front().tensor.options().requires_grad(false));
  for (const auto& entry : unit.layout.entries()) {
    const Parameter& parameter = members.parameters[entry.source];
    view_of(full, entry).copy_(parameter.tensor);
    parameter.tensor.set_data(at::empty({0}, full.options()));  // until storage is assigned
    unit.blocks.push_back(model_.names[members.block_of[entry.source]]);
    unit.handles.push_back({parameter.tensor});
    unit.blank.push_back(parameter.lazy_zero_gradient);
    // If it is tied, too: see tie().
    unit.ends_with_rows = parameter.row_gradient && unit.layout.entries().size() == 1;
    place(unit, entry);
    if (!members.scales.empty()) scales.push_back(members.scales[entry.source]);
    if (!members.products.empty()) unit.products.push_back(members.products[entry.source]);
  }
  if (!scales.empty()) unit.scales = aligned_scales(scales);
  const size_t u = model_.units.size();
  for (size_t block : members.users) model_.units_of_block[block].push_back(u);
  model_.units.push_back(std::move(unit));
  take_(u, full);
}

void Maker::place(ParameterUnit& unit, const FlatEntry& entry) const {
  const std::string here = unit.blocks.back() + "." + entry.name;
  const auto owner = model_.owner_elsewhere.find(here);
  ParameterRange placed{owner == model_.owner_elsewhere.end() ? here : owner->second, entry.shape,
                        entry.range.offset, entry.range.numel};
  const TensorShard& shard = entry.placement.shard;
  if (!shard.replicated()) placed.shape[static_cast<size_t>(shard.dim)] = shard.full_size;
  unit.placed.push_back(std::move(placed));
}

void Maker::tie(const Alias& alias) {
  const TiedParameter& tied = *alias.tie;
  for (size_t u = 0; u < model_.units.size(); ++u) {
    ParameterUnit& unit = model_.units[u];
    const auto& entries = unit.layout.entries();
    for (size_t e = 0; e < entries.size(); ++e) {
      if (unit.blocks[e] != tied.owner_block || entries[e].name != tied.owner_parameter) continue;
      check(alias.handle.sizes() == at::IntArrayRef(entries[e].shape), ErrorCode::kInvalidArgument,
            "tied parameters differ in shape: ", tied.owner_block, ".", tied.owner_parameter, " ",
            at::IntArrayRef(entries[e].shape), " and ", tied.alias_block, ".", tied.alias_parameter,
            " ", alias.handle.sizes());
      alias.handle.set_requires_grad(!unit.frozen);
      unit.handles[e].push_back(alias.handle);
      unit.blank[e] = unit.blank[e] && alias.lazy_zero_gradient;
      auto& users = model_.units_of_block[alias.block_index];
      if (std::ranges::find(users, u) != users.end()) return;
      users.push_back(u);
      ++unit.uses;
      unit.ends_with_rows = unit.ends_with_rows && entries[e].shape.size() == 2 &&
                            entries[e].placement.shard.replicated() &&
                            entries[e].placement.replicas.empty() &&
                            model_.names[alias.block_index] != tied.owner_block;
      return;
    }
  }
  fail(ErrorCode::kInvalidArgument, "tied parameter ", tied.owner_block, ".", tied.owner_parameter,
       " does not exist in the model");
}

// Like layout.counted_numel(), which experts' first owner alone would count: every data rank counts
// the whole parameter.
int64_t counted_numel(const ParameterUnit& unit) {
  if (unit.holders == nullptr) return unit.layout.counted_numel();
  int64_t sum = 0;
  for (const FlatEntry& entry : unit.layout.entries()) {
    sum += entry.placement.shard.whole_numel(entry.shape);
  }
  return sum;
}

void count_parameters(const ProcessGroups& ranks, AttachedModel& model) {
  int64_t count = 0, trained = 0, coded = 0;
  for (const ParameterUnit& unit : model.units) {
    count += counted_numel(unit);
    trained += unit.frozen ? 0 : 1;
    coded += unit.coded() ? 1 : 0;
  }
  if (ranks.sharers > 1 && ranks.data.device().is_meta()) {
    trained = coded = 1;  // on another stage, if not here
  } else if (ranks.sharers > 1) {
    at::Tensor sums = at::tensor({count, trained, coded}, at::kLong).to(ranks.data.device());
    ranks.world->all_reduce(sums).wait();
    sums = sums.cpu();
    count = sums[0].item<int64_t>() / ranks.data.size();
    trained = sums[1].item<int64_t>();
    coded = sums[2].item<int64_t>();
  }
  model.parameter_count = count;
  model.is_trained = trained > 0;
  model.has_codes = coded > 0;
}

// Stages tell each other, so that all refuse the same packed rows before a message is owed.
void agree_on_packed_rows(const ProcessGroups& ranks, AttachedModel& model) {
  for (size_t i = 0; i < model.blocks.size() && model.refuses_packed.empty(); ++i) {
    if (!model.blocks[i]->supports_packed_rows()) model.refuses_packed = model.names[i];
  }
  if (ranks.sharers == 1 || ranks.data.device().is_meta()) return;
  Communicator& world = *ranks.world;
  at::Tensor refuses = at::zeros({world.size()}, at::kLong).to(ranks.data.device());
  if (!model.refuses_packed.empty()) refuses[world.rank()] = 1;
  world.all_reduce(refuses).wait();
  refuses = refuses.cpu();
  if (!refuses.any().item<bool>()) return;
  const auto first = static_cast<int>(refuses.argmax().item<int64_t>());
  model.refuses_packed = broadcast_described(world, first, {model.refuses_packed, {}}).words;
}

}  // namespace

void check_model(const ModelSpec& model, const PrecisionConfig& precision) {
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

void build_model(const ModelSpec& spec, const BuildContext& context, const ShardingRules& rules,
                 FrozenDtype frozen, const ProcessGroups& ranks, const UnitTaker& take,
                 AttachedModel& model) {
  Maker(spec, context, rules, frozen, ranks, take, model).make(ranks.tensor());
  count_parameters(ranks, model);
  agree_on_packed_rows(ranks, model);
}

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

at::Tensor value_of(const Buffer& buffer, Communicator& data) {
  const at::Tensor value = buffer.tensor.detach().clone();
  const ForTensor of(buffer.name);
  if (buffer.data_rank >= 0) data.broadcast(value, buffer.data_rank).wait();
  return value;
}

void AttachedModel::adopt_statistics(Communicator& data) const {
  at::NoGradGuard no_grad;
  if (data.size() == 1) return;
  for (const auto& block : blocks) {
    for (Buffer& buffer : block->buffers()) {
      if (buffer.data_rank >= 0) buffer.tensor.copy_(value_of(buffer, data));
    }
  }
}

bool AttachedModel::all_recordable(bool training) const {
  return std::ranges::all_of(blocks,
                             [&](const auto& block) { return block->is_recordable(training); });
}

}  // namespace tessera
