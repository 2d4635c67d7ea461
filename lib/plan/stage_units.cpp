#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lib/plan/rules.h"
#include "lib/plan/stage.h"
#include "tessera/plan/model_shapes.h"

namespace tessera {

void make_units(const LayoutPlan& plan, const std::vector<size_t>& blocks, Stage& stage) {
  const auto shapes = model_shapes(plan.model, plan.mesh.tensor, end_ranks(plan));
  const bool zero3 = plan.parallel.strategy == "zero3";
  const auto threshold = zero3 ? plan.parallel.persistence_threshold : 0;
  std::set<std::string> here, elsewhere;
  for (size_t block = 0; block < shapes.size(); ++block) {
    const bool mine = std::ranges::find(blocks, block) != blocks.end();
    for (const ParameterShape& p : shapes[block]) {
      if (p.tied) (mine ? here : elsewhere).insert(p.owner);
    }
  }
  const bool shared = plan.parallel.pipeline.shared_vocabulary;
  std::map<std::string, size_t> tied_units;
  Unit open;
  std::vector<size_t> users;
  auto close = [&] {
    if (open.numel() == 0) return;
    for (size_t user : users) stage.units_of_block[user].push_back(stage.units.size());
    stage.units.push_back(std::exchange(open, {}));
    users.clear();
  };
  stage.units_of_block.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const ParameterShape& p : shapes[blocks[i]]) {
      const auto numel = static_cast<double>(p.numel);
      if (p.whole) stage.whole += numel;
      double Unit::*part = p.numel < threshold ? &Unit::small : &Unit::large;
      if (!p.tied) {
        open.*part += numel;
        if (users.empty() || users.back() != i) users.push_back(i);
        continue;
      }
      const auto [known, fresh] = tied_units.emplace(p.owner, stage.units.size());
      if (fresh) {
        Unit& unit = stage.units.emplace_back();
        unit.*part = numel;
        unit.tied_away = elsewhere.contains(p.owner);
      } else {
        stage.units[known->second].tied_here = true;
      }
      stage.units_of_block[i].push_back(known->second);
    }
    const auto wanted = static_cast<double>(plan.parallel.unit_numel);
    const bool ends_part = shared && (i == 0 || i + 2 == blocks.size());
    if (open.numel() >= wanted || ends_part || i + 1 == blocks.size()) close();
  }
}

}  // namespace tessera
