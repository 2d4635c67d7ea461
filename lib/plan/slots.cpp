// SPDX-License-Identifier: MIT
#include "lib/plan/slots.h"

#include <map>
#include <numeric>
#include <set>

namespace tessera {

SlotAssignment slots_of(const Stage& stage, int64_t (PlannedUnit::*size)() const, int depth,
                        bool all_apart) {
  std::vector<SlotUser> users;
  for (const PlannedUnit& unit : stage.units) {
    users.push_back(
        {.numel = (unit.*size)(), .turn = unit.turn, .exclusive = all_apart || unit.apart});
  }
  return assign_slots(users, depth);
}

double elements_of(const SlotAssignment& slots) {
  return static_cast<double>(
      std::accumulate(slots.slot_numel.begin(), slots.slot_numel.end(), int64_t{0}));
}

double gathered_elements(const Stage& stage, const SlotAssignment& slots) {
  std::map<size_t, std::vector<size_t>> of_turn;  // units that are gathered together
  for (size_t unit = 0; unit < stage.units.size(); ++unit) {
    if (!stage.units[unit].apart) of_turn[stage.units[unit].turn].push_back(unit);
  }
  std::vector<std::set<size_t>> present(slots.slot_numel.size());
  double elements = 0;
  for (int step = 0; step < 2; ++step) {  // frozen units of the step before may still be there
    elements = 0;
    for (size_t unit : stage.visits) {
      if (present[slots.slot[unit]].contains(unit)) continue;
      const PlannedUnit& visited = stage.units[unit];
      const std::vector<size_t> together =
          visited.apart ? std::vector<size_t>{unit} : of_turn[visited.turn];
      for (const size_t each : together) {
        std::set<size_t>& here = present[slots.slot[each]];
        std::erase_if(here, [&](size_t u) { return stage.units[u].turn != visited.turn; });
        if (!here.insert(each).second) continue;
        elements += static_cast<double>(stage.units[each].gathered());
      }
    }
    for (std::set<size_t>& here : present) {
      std::erase_if(here, [&](size_t unit) { return !stage.units[unit].frozen; });
    }
  }
  return elements;
}

}  // namespace tessera
