// SPDX-License-Identifier: MIT
#include "lib/plan/matrices.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "lib/optim/matrix_updates.h"
#include "lib/plan/rules.h"
#include "lib/plan/traffic.h"

namespace tessera {

double update_width(const LayoutPlan& plan) {
  return static_cast<double>(at::elementSize(plan.matrices->update_dtype()));
}

MatrixOwners owners_of(const LayoutPlan& plan, const Stage& stage) {
  if (plan.matrices == nullptr) return {};
  std::vector<MatrixUnit> units;
  for (const PlannedUnit& unit : stage.units) {
    units.push_back({&unit.layout, unit.matrices, unit.apart});
  }
  const auto round_numel = plan.parallel.bucket_bytes / static_cast<int64_t>(update_width(plan));
  return matrix_owners(
      units, plan.mesh.data / rules_of(plan).shards, round_numel,
      {[&](c10::IntArrayRef shape) { return plan.matrices->cost(shape); },
       [&](c10::IntArrayRef shape) { return state_numel(*plan.matrices, shape); }});
}

double exchange_bytes(const LayoutPlan& plan, const Stage& stage, const MatrixOwners& owners) {
  if (plan.matrices == nullptr) return 0;
  const Dtypes d(plan.parallel.precision);
  const bool reads = plan.matrices->reads_parameter();
  const double update = update_width(plan), element = d.gradient + update + (reads ? 4 : 0);
  const int shards = rules_of(plan).shards;
  double bytes = update * stage.whole_matrices() / shards;
  if (shards > 1) bytes += 2 * element * static_cast<double>(owners.room.gathered);
  bytes += element * static_cast<double>(owners.room.slices);
  return bytes + (reads ? 8 : 4) * static_cast<double>(owners.room.whole);
}

void add_matrix_traffic(const LayoutPlan& plan, const MatrixOwners& owners, LayoutCost& cost) {
  if (plan.matrices == nullptr) return;
  const Dtypes d(plan.parallel.precision);
  const double gradient = d.gradient + (plan.matrices->reads_parameter() ? 4 : 0);
  const double update = update_width(plan);
  const auto bytes = [&](const MatrixTraffic& sent) {
    return gradient * static_cast<double>(sent.gathered) +
           update * static_cast<double>(sent.scattered + sent.told);
  };
  const auto most = std::ranges::max_element(owners.sent, {}, bytes);
  if (most == owners.sent.end()) return;
  const int shards = rules_of(plan).shards, groups = plan.mesh.data / shards;
  add(cost, {"matrices to owners", "send", Axis::kData, shards,
             gradient * static_cast<double>(most->gathered)});
  add(cost, {"updates of matrices", "send", Axis::kData, shards,
             update * static_cast<double>(most->scattered)});
  add(cost, {"updates of matrices", "broadcast", Axis::kData, groups,
             update * static_cast<double>(most->told)});
  add(cost, {"slices of matrices", "send", Axis::kTensor, plan.mesh.tensor,
             (gradient + update) * most->slices});
}

}  // namespace tessera
