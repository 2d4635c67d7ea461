// SPDX-License-Identifier: MIT
#include "tessera/plan/layout_cost.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/optim/matrix_updates.h"
#include "lib/plan/matrices.h"
#include "lib/plan/offload.h"
#include "lib/plan/optimizer_state.h"
#include "lib/plan/rules.h"
#include "lib/plan/slots.h"
#include "lib/plan/stage.h"
#include "lib/plan/traffic.h"
#include "lib/plan/wire.h"

namespace tessera {
namespace {

// Of all shards, on the device. Split ones have their other half in the parameter.
double master_bytes(const LayoutPlan& plan, const Stage& stage) {
  const at::ScalarType parameter = plan.parallel.precision.parameter;
  if (parameter == at::kFloat) return 0;
  const bool splits = plan.moments.splits_masters && parameter == at::kBFloat16;
  double bytes = 0;
  for (const PlannedUnit& unit : stage.units) {
    bytes += (splits && !unit.matrices ? 2.0 : 4.0) * static_cast<double>(unit.trained());
  }
  return bytes;
}

}  // namespace

LayoutCost layout_cost(const LayoutPlan& plan, int index) {
  const Stage stage = make_stage(plan, index);
  const Dtypes d(plan.parallel.precision);
  const ShardingRules rules = rules_of(plan);
  const int shards = rules.shards;
  const double numel = stage.numel(), resident = stage.resident(), trained = stage.trained();
  LayoutCost cost;
  cost.parameter_bytes = d.parameter * numel;
  cost.gradient_bytes = d.gradient * trained;
  const MatrixOwners owners = owners_of(plan, stage);
  const StateBytes state = state_bytes(plan, stage);
  cost.optimizer_bytes = master_bytes(plan, stage) / shards + state.most +
                         4.0 * static_cast<double>(owners.room.state);
  // Every data rank writes its part; of frozen parameters what forward reads.
  const double frozen = plan.saves_frozen ? d.parameter * (numel - trained) : 0;
  cost.saved_bytes =
      (4.0 * (trained + owners.room.all_state) + state.all + frozen) / plan.mesh.data;
  double gathered = 0;
  if (rules.gathers_parameters) {
    cost.parameter_bytes = d.parameter * (resident + (numel - resident) / shards);
    const int depth = plan.parallel.overlap ? plan.parallel.prefetch_blocks + 1 : 1;
    const SlotAssignment slots =
        slots_of(stage, &PlannedUnit::gathered, depth, rules.keeps_gathered);
    cost.buffer_bytes += d.parameter * elements_of(slots);
    gathered = gathered_elements(stage, slots);
  }
  if (rules.shards_gradients) {
    cost.gradient_bytes /= shards;
    const int depth = plan.parallel.overlap ? 2 : 1;
    cost.buffer_bytes += d.gradient * elements_of(slots_of(stage, &PlannedUnit::trained, depth));
  }
  cost.buffer_bytes += wire_bytes(plan, stage) + exchange_bytes(plan, stage, owners);
  move_to_host(plan, stage, owners, cost);
  add_traffic(plan, stage, gathered, cost);
  add_matrix_traffic(plan, owners, cost);
  return cost;
}

LayoutCost largest_layout_cost(const LayoutPlan& plan) {
  LayoutCost largest = layout_cost(plan, 0);
  for (int stage = 1; stage < plan.mesh.pipeline; ++stage) {
    const LayoutCost other = layout_cost(plan, stage);
    for (double LayoutCost::*bytes :
         {&LayoutCost::parameter_bytes, &LayoutCost::gradient_bytes, &LayoutCost::optimizer_bytes,
          &LayoutCost::buffer_bytes, &LayoutCost::host_bytes, &LayoutCost::saved_bytes}) {
      largest.*bytes = std::max(largest.*bytes, other.*bytes);
    }
  }
  return largest;
}

void plan_optimizer(LayoutPlan& plan, const OptimizerFactory& optimizer) {
  plan.moments = state_needs(optimizer);
  const WholeMatrices* matrices = whole_matrices(optimizer);
  plan.matrices = matrices == nullptr ? nullptr : matrices->optimizer;
  plan.model = with_marked_matrices(std::move(plan.model), optimizer);
}

}  // namespace tessera
