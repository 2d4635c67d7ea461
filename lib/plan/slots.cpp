#include "lib/plan/slots.h"

#include <map>

namespace tessera {

Slots::Slots(const std::vector<PlannedUnit>& units, int64_t (PlannedUnit::*size)() const, int depth,
             bool all_alone) {
  std::map<int64_t, std::vector<size_t>> classes;
  std::map<int64_t, size_t> users;
  size_t count = 0;
  for (const PlannedUnit& unit : units) {
    const int64_t numel = (unit.*size)();
    auto& slots = classes[numel];
    const bool alone = unit.tied_here || all_alone;
    if (alone || slots.size() < static_cast<size_t>(depth)) {
      elements += numel;
      slot_of.push_back(count++);
      if (!alone) slots.push_back(slot_of.back());
      if (!alone) ++users[numel];
    } else {
      slot_of.push_back(slots[users[numel]++ % slots.size()]);
    }
  }
}

double gathered_elements(const Stage& stage, const Slots& slots) {
  std::map<size_t, size_t> holder;
  double elements = 0;
  for (size_t unit : stage.visits) {
    const auto [held, fresh] = holder.emplace(slots.slot_of[unit], unit);
    if (!fresh && held->second == unit) continue;
    held->second = unit;
    elements += static_cast<double>(stage.units[unit].gathered());
  }
  return elements;
}

}  // namespace tessera
