// SPDX-License-Identifier: MIT
#include <algorithm>
#include <map>
#include <set>

#include "lib/core/late_rows.h"
#include "lib/plan/rules.h"
#include "lib/plan/stage.h"
#include "lib/sharding/unit_grouping.h"

namespace tessera {

void make_units(const LayoutPlan& plan, const std::vector<StageBlocks>& blocks, size_t index,
                Stage& stage) {
  const ShardingRules rules = rules_of(plan);
  UnitGrouping grouping(rules, [&](const UnitMembers& members) {
    for (size_t user : members.users) stage.units_of_block[user].push_back(stage.units.size());
    stage.units.push_back({.layout = FlatLayout(members.parameters, rules.shards, rules.granularity,
                                                rules.persistence_threshold, rules.state),
                           .frozen = members.frozen(),
                           .apart = members.apart,
                           .matrices = members.matrices(),
                           .turn = members.turn});
  });
  auto stages_with = [&](const std::string& owner) {
    if (plan.parallel.pipeline.shared_vocabulary) return 1;  // each has slices of its own
    return static_cast<int>(std::ranges::count_if(blocks, [&](const StageBlocks& of_stage) {
      return std::ranges::any_of(of_stage, [&](const StageBlock& block) {
        return std::ranges::count(stage.shapes.blocks[block.index], owner, &ParameterShape::owner) >
               0;
      });
    }));
  };
  std::map<std::string, size_t> tied_units;
  std::set<size_t> rows_of;  // units of parameters with promises
  const StageBlocks& own = blocks[index];
  stage.units_of_block.resize(own.size());
  const auto use = [&](size_t block, const ParameterShape& shape, size_t unit) {
    stage.units_of_block[block].push_back(unit);
    PlannedUnit& used = stage.units[unit];
    used.ends_with_rows = rows_of.contains(unit) && !used.frozen && used.stages == 1 &&
                          shape.parameter.placement.shard.replicated();
  };
  // A tied parameter's unit is made where its owner is, which may be behind its aliases.
  std::set<std::string> owners;
  const auto name_of = [&](size_t i, const ParameterShape& shape) {
    return plan.model.blocks[own[i].index].name + "." + shape.parameter.name;
  };
  for (size_t i = 0; i < own.size(); ++i) {
    for (const ParameterShape& shape : stage.shapes.blocks[own[i].index]) {
      if (shape.tied && shape.owner == name_of(i, shape)) owners.insert(shape.owner);
    }
  }
  struct Alias {
    size_t block;
    const ParameterShape* shape;
  };
  std::vector<Alias> early;
  for (size_t i = 0; i < own.size(); ++i) {
    for (const ParameterShape& shape : stage.shapes.blocks[own[i].index]) {
      if (const auto known = tied_units.find(shape.owner); known != tied_units.end()) {
        use(i, shape, known->second);
        continue;
      }
      if (shape.tied && owners.contains(shape.owner) && shape.owner != name_of(i, shape)) {
        early.push_back({i, &shape});
        continue;
      }
      if (shape.tied) tied_units[shape.owner] = stage.units.size();
      if (shape.tied && promises_rows(shape.parameter.tensor)) rows_of.insert(stage.units.size());
      grouping.add(i, shape.parameter, /*apart=*/shape.tied);
      if (shape.tied) stage.units.back().stages = stages_with(shape.owner);
    }
    grouping.end_block(own[i].ends_unit);
  }
  for (const Alias& alias : early)
    use(alias.block, *alias.shape, tied_units.at(alias.shape->owner));
}

}  // namespace tessera
