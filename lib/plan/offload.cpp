// SPDX-License-Identifier: MIT
#include "lib/plan/offload.h"

#include <algorithm>

#include "backends/offload/state_room.h"
#include "lib/plan/matrices.h"
#include "lib/plan/optimizer_state.h"
#include "lib/plan/recomputation.h"
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

// What keeps its state on the device (DeviceShare), and what does not: each sees the other's units
// as frozen ones.
struct Shares {
  Stage on_device, offloaded;
};

Shares shares_of(const LayoutPlan& plan, const Stage& stage) {
  Shares shares{stage, stage};
  const OffloadConfig& offload = plan.parallel.offload;
  StateRoom room(offload.shares_device() ? offload.device_bytes : 0);
  const double master = plan.parallel.precision.parameter == at::kFloat ? 0 : 4;
  for (size_t u = 0; u < stage.units.size(); ++u) {
    const PlannedUnit& unit = stage.units[u];
    const auto element = [&](bool small) {
      return master + (unit.matrices ? 0 : plan.moments.bytes_of(small));
    };
    const bool stays = offload.shares_device() && !unit.frozen &&
                       room.take(unit.layout, element(false), element(true));
    (stays ? shares.offloaded : shares.on_device).units[u].frozen = true;
  }
  return shares;
}

double bytes_on_device(const LayoutPlan& plan, const Stage& share) {
  double masters = 0;
  for (const PlannedUnit& unit : share.units) {
    if (!unit.frozen) masters += 4.0 * static_cast<double>(unit.layout.shard_numel());
  }
  if (plan.parallel.precision.parameter == at::kFloat) masters = 0;
  return masters + state_bytes(plan, share).most;
}

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
    cost.host_state_bytes += element * owned;
    if (!streams) {
      element += placed.gradient;
      if (is_16_bit && !targets_on_host && placed.gradient > 2) element += d.parameter;
    }
    cost.host_bytes += element * owned;
  }
  if (!placed.matrices) {
    const double state = state_bytes(plan, stage).most;
    cost.host_bytes += state;
    cost.host_state_bytes += state;
  }
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
  const Shares shares = shares_of(plan, stage);
  cost.optimizer_bytes = bytes_on_device(plan, shares.on_device);
  cost.host_bytes += 4.0 * static_cast<double>(owners.room.state);
  if (offload.what != Offload::kOptimizer) {
    cost.parameter_bytes = d.parameter * stage.resident();
    for (const PlannedUnit& unit : stage.units) {
      cost.host_bytes += d.parameter * static_cast<double>(unit.gathered()) / unit.layout.shards();
    }
  }
  move_masters(plan, shares.offloaded, {.gradient = d.gradient}, cost);
  if (plan.matrices == nullptr) return;
  move_masters(plan, shares.offloaded, {.matrices = true, .gradient = update_width(plan)}, cost);
}

int64_t room_for_state(const LayoutPlan& plan, const BatchShape& batch, const Card& card,
                       double memory, const BetweenSteps& between) {
  LayoutPlan without = plan;
  without.parallel.offload.device_bytes = 0;
  double most = 0;
  for (const MemoryPlan& stage : memory_plan(without, batch, card, between)) {
    most = std::max(most, stage.device_bytes());
  }
  return static_cast<int64_t>(std::max(0.0, (1 - kMemoryReserve) * memory - most));
}

}  // namespace tessera
