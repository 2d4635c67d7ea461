#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lib/plan/rules.h"
#include "lib/plan/stage.h"
#include "tessera/plan/model_shapes.h"

namespace tessera {

void make_units(const LayoutPlan& plan, const std::vector<StageBlock>& blocks, Stage& stage) {
  const auto shapes = model_shapes(plan.model, plan.mesh.tensor, end_ranks(plan));
  const bool zero3 = plan.parallel.strategy == "zero3";
  std::set<std::string> elsewhere;  // owners of tied parameters that other stages hold, too
  for (size_t block = 0; block < shapes.size(); ++block) {
    if (std::ranges::find(blocks, block, &StageBlock::index) != blocks.end()) continue;
    for (const ParameterShape& p : shapes[block]) {
      if (p.tied) elsewhere.insert(p.owner);
    }
  }
  auto add_unit = [&](const std::vector<Parameter>& parameters, const std::vector<size_t>& users) {
    for (size_t user : users) stage.units_of_block[user].push_back(stage.units.size());
    stage.units.push_back(
        {FlatLayout(parameters, layout_shards(plan),
                    zero3 ? ShardGranularity::kParameter : ShardGranularity::kFlat,
                    plan.parallel.persistence_threshold)});
  };
  std::map<std::string, size_t> tied_units;
  std::vector<Parameter> open;
  std::vector<size_t> users;
  int64_t numel = 0;
  stage.units_of_block.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const ParameterShape& p : shapes[blocks[i].index]) {
      if (p.whole) stage.whole += static_cast<double>(p.tensor.numel());
      if (!p.tied) {
        open.push_back({.tensor = p.tensor});
        numel += p.tensor.numel();
        if (users.empty() || users.back() != i) users.push_back(i);
        continue;
      }
      const auto [known, fresh] = tied_units.emplace(p.owner, stage.units.size());
      if (fresh) {
        add_unit({{.tensor = p.tensor}}, {i});
        stage.units.back().tied_away = elsewhere.contains(p.owner);
      } else {
        stage.units[known->second].tied_here = true;
        stage.units_of_block[i].push_back(known->second);
      }
    }
    if (numel < plan.parallel.unit_numel && !blocks[i].ends_part) continue;
    if (!open.empty()) add_unit(std::exchange(open, {}), std::exchange(users, {}));
    numel = 0;
  }
}

}  // namespace tessera
