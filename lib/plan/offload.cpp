// SPDX-License-Identifier: MIT
#include "lib/plan/offload.h"

#include <algorithm>

#include "lib/plan/matrices.h"
#include "lib/plan/optimizer_state.h"
#include "lib/plan/rules.h"

namespace tessera {

namespace {

// On a GPU the step's place is measured when the run begins: the most of both.
void move_to_host_somehow(const LayoutPlan& plan, const Stage& stage, const MatrixOwners& owners,
                          LayoutCost& cost) {
  const auto with_step = [&](OffloadStep step) {
    LayoutPlan placed = plan;
    placed.parallel.offload.step = step;
    LayoutCost moved = cost;
    move_to_host(placed, stage, owners, moved);
    return moved;
  };
  const double host_bytes = with_step(OffloadStep::kHost).host_bytes;
  cost = with_step(plan.on_gpu ? OffloadStep::kDevice : OffloadStep::kHost);
  cost.host_bytes = std::max(cost.host_bytes, host_bytes);
}

// One placement: that of elements, or that of whole matrices, which keeps masters alone.
struct Placed {
  bool matrices = false;
  double gradient = 4;  // bytes an element of what it updates with
};

void move_masters(const LayoutPlan& plan, const Stage& stage, const Placed& placed,
                  LayoutCost& cost) {
  const OffloadConfig& offload = plan.parallel.offload;
  const Dtypes d(plan.parallel.precision);
  const bool is_16_bit = d.parameter < 4, parameters_too = offload.what != Offload::kOptimizer;
  const bool streams = offload.step == OffloadStep::kDevice;
  bool any_target_on_host = false;
  for (const PlannedUnit& unit : stage.units) {
    if (unit.frozen || unit.matrices != placed.matrices) continue;
    any_target_on_host = any_target_on_host || (parameters_too && unit.gathered() > 0);
    const auto owned = static_cast<double>(unit.layout.shard_numel());
    const bool targets_on_host = parameters_too && unit.resident() == 0;
    const bool master = is_16_bit || (!streams && !targets_on_host);
    double element = master ? 4 : 0;
    if (!streams) {
      element += placed.gradient;
      if (is_16_bit && !targets_on_host && placed.gradient > 2) element += d.parameter;
    }
    cost.host_bytes += element * owned;
  }
  if (!placed.matrices) cost.host_bytes += state_bytes(plan, stage).most;
  if (!streams) return;
  const StateChunks chunks = state_chunks(plan, stage, placed.matrices);
  const double element = (is_16_bit || any_target_on_host ? 4 : 0) +
                         (is_16_bit && any_target_on_host ? d.parameter : 0);
  cost.buffer_bytes += 3 * (chunks.numel * element + chunks.bytes);
}

}  // namespace

void move_to_host(const LayoutPlan& plan, const Stage& stage, const MatrixOwners& owners,
                  LayoutCost& cost) {
  const OffloadConfig& offload = plan.parallel.offload;
  if (offload.what == Offload::kNone) return;
  if (offload.step == OffloadStep::kAuto) {
    return move_to_host_somehow(plan, stage, owners, cost);
  }
  const Dtypes d(plan.parallel.precision);
  cost.optimizer_bytes = 0;
  cost.host_bytes += 4.0 * static_cast<double>(owners.room.state);
  if (offload.what != Offload::kOptimizer) {
    cost.parameter_bytes = d.parameter * stage.resident();
    for (const PlannedUnit& unit : stage.units) {
      cost.host_bytes += d.parameter * static_cast<double>(unit.gathered()) / unit.layout.shards();
    }
  }
  move_masters(plan, stage, {.gradient = d.gradient}, cost);
  if (plan.matrices == nullptr) return;
  move_masters(plan, stage, {.matrices = true, .gradient = update_width(plan)}, cost);
}

}  // namespace tessera
