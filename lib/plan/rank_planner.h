// SPDX-License-Identifier: MIT
#pragma once
// What one rank holds and sends, pass by pass.
#include <functional>
#include <string>
#include <vector>

#include "lib/plan/dry_run.h"
#include "lib/plan/memory_plan.h"

namespace tessera {

// One rank of a layout, attached. Every pass runs twice, and the second time counts. Throws as
// plan_rank().
class RankPlanner {
 public:
  // plan outlives this.
  RankPlanner(const LayoutPlan& plan, const MeshCoordinate& coordinate);

  Activations step(const BatchShape& batch);
  Activations evaluation(const BatchShape& batch);
  Activations generation(const BatchShape& batch);

  StatePlan lasting() const;  // without traffic and checkpoint
  StatePlan state();          // all of it; after step()
  // The most that a forward pass of this block left for its backward, in step(); bytes.
  int64_t kept_by(const std::string& block) const;

 private:
  using Passes = std::function<void(Strategy&, const std::vector<MicroBatch>&)>;
  Activations run(const std::vector<BatchShape>& shapes, const Passes& passes);

  const LayoutPlan& plan_;
  DryRun run_;
};

}  // namespace tessera
