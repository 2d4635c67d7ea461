#include <algorithm>
#include <map>
#include <utility>

#include "lib/plan/rules.h"
#include "lib/plan/stage.h"

namespace tessera {
namespace {

// Parameters of the turn under way that will form a unit.
struct OpenUnit {
  std::vector<Parameter> parameters;
  std::vector<size_t> users;  // blocks of the stage
  int64_t numel = 0;

  void add(const Parameter& parameter, size_t user) {
    parameters.push_back(parameter);
    if (users.empty() || users.back() != user) users.push_back(user);
    numel += parameter.tensor.numel();
  }
};

}  // namespace

void make_units(const LayoutPlan& plan, const std::vector<StageBlocks>& blocks, size_t index,
                Stage& stage) {
  const bool per_parameter = plan.parallel.strategy == "zero3";
  size_t turn = 0;
  auto close = [&](OpenUnit& open) -> PlannedUnit& {
    for (size_t user : open.users) stage.units_of_block[user].push_back(stage.units.size());
    stage.units.push_back({.layout = FlatLayout(open.parameters, layout_shards(plan),
                                                per_parameter ? ShardGranularity::kParameter
                                                              : ShardGranularity::kFlat,
                                                plan.parallel.persistence_threshold),
                           .frozen = open.parameters.front().placement.frozen,
                           .turn = turn});
    open = {};
    return stage.units.back();
  };
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
  OpenUnit trained, frozen;
  const StageBlocks& own = blocks[index];
  stage.units_of_block.resize(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    for (const ParameterShape& shape : stage.shapes.blocks[own[i].index]) {
      if (!shape.tied) {
        (shape.parameter.placement.frozen ? frozen : trained).add(shape.parameter, i);
        continue;
      }
      const auto [known, fresh] = tied_units.emplace(shape.owner, stage.units.size());
      if (fresh) {
        OpenUnit alone;
        alone.add(shape.parameter, i);
        PlannedUnit& unit = close(alone);
        unit.apart = true;
        unit.stages = stages_with(shape.owner);
      } else {
        stage.units_of_block[i].push_back(known->second);
      }
    }
    if (trained.numel + frozen.numel < plan.parallel.unit_numel && !own[i].ends_unit) continue;
    for (OpenUnit* open : {&trained, &frozen}) {
      if (!open->parameters.empty()) close(*open);
    }
    ++turn;
  }
}

}  // namespace tessera
