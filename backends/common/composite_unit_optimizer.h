// SPDX-License-Identifier: MIT
#pragma once
// Routes each unit to one of two optimizers, and shows it to the other as frozen.
#include <vector>

#include "tessera/backends/unit_optimizer.h"

namespace tessera {

class CompositeUnitOptimizer : public UnitOptimizer {
 public:
  void complete(size_t unit) override { of(unit).complete(unit); }
  MasterValues master(size_t unit, size_t segment) const override {
    return of(unit).master(unit, segment);
  }
  std::vector<KeptTensor> state(size_t unit, size_t segment, const FlatRange& part) const override {
    return of(unit).state(unit, segment, part);
  }

 protected:
  // Adds the next unit to one optimizer's list.
  static void show(const ParameterUnit& unit, bool is_own, std::vector<ParameterUnit>& units) {
    ParameterUnit& shown = units.emplace_back(unit);
    shown.frozen = unit.frozen || !is_own;
    shown.handles.clear();
  }

 private:
  // The unit's optimizer.
  virtual UnitOptimizer& of(size_t unit) const = 0;
};

}  // namespace tessera
