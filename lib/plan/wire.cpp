// SPDX-License-Identifier: MIT
#include "lib/plan/wire.h"

#include <algorithm>

#include "lib/plan/rules.h"
#include "lib/sharding/messages.h"
#include "tessera/sharding/gradient_wire.h"

namespace tessera {
namespace {

int64_t late_elements_of_rank(const Stage& stage, int rank) {
  int64_t numel = 0;
  for (const PlannedUnit& unit : stage.units) {
    if (unit.frozen || unit.apart) continue;
    for (size_t segment = 0; segment < unit.layout.segments().size(); ++segment) {
      for (const OwnedRun& run : unit.layout.owned_runs(segment, rank)) {
        if (Placement{.holders = run.holders}.partial()) numel += run.range.numel;
      }
    }
  }
  return numel;
}

}  // namespace

double late_elements(const LayoutPlan& plan, const Stage& stage) {
  int64_t most = 0;
  for (int rank = 0; rank < rules_of(plan).shards; ++rank) {
    most = std::max(most, late_elements_of_rank(stage, rank));
  }
  return static_cast<double>(most);
}

double wire_bytes(const LayoutPlan& plan, const Stage& stage) {
  const Dtypes d(plan.parallel.precision);
  double bytes = d.reduce * late_elements(plan, stage);
  if (!converts(plan.parallel.precision)) return bytes;
  int64_t largest = 0;
  for (const PlannedUnit& unit : stage.units) largest = std::max(largest, unit.trained());
  const int64_t bucket =
      bucket_bytes(plan.parallel.bucket_bytes, rules_of(plan), static_cast<int64_t>(d.gradient));
  const int64_t piece =
      GradientWire::piece_numel(plan.parallel.precision.reduce_dtype(), bucket, largest);
  return bytes + 2 * d.reduce * static_cast<double>(piece);
}

}  // namespace tessera
