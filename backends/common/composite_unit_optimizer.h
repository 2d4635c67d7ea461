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
  // The context of one of both for offloaded state, whose masters are fp32. expected: estimate of
  // the elements that it will own.
  static UnitOptimizerContext shown_context(const UnitOptimizerContext& all,
                                            const std::vector<ParameterUnit>& units,
                                            int64_t expected) {
    return {.units = units,
            .shard_rank = all.shard_rank,
            .parameter_dtype = all.parameter_dtype,
            .device = all.device,
            .expected_numel = expected,
            .state_bytes = all.state_bytes,
            .small_state_bytes = all.small_state_bytes};
  }

 private:
  // The unit's optimizer.
  virtual UnitOptimizer& of(size_t unit) const = 0;
};

}  // namespace tessera
