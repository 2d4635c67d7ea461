// SPDX-License-Identifier: MIT
#pragma once
// Memory and traffic of one rank, pass by pass.
#include <functional>
#include <string>
#include <vector>

#include "lib/plan/dry_run.h"
#include "lib/plan/memory_plan.h"

namespace tessera {

// An attached rank of a layout. Every pass runs twice; the second run counts. Throws as
// plan_rank().
class RankPlanner {
 public:
  // plan must outlive this.
  RankPlanner(const PlannedLayout& layout, const MeshCoordinate& coordinate);

  Activations step(const BatchShape& batch);
  Activations evaluation(const BatchShape& batch);
  Activations generation(const BatchShape& batch);

  StateMemory lasting() const;  // persistent, without traffic and checkpoint
  StateMemory state();          // complete; call after step()
  // Peak bytes that a forward pass of this block saved for backward in step().
  int64_t kept_by(const std::string& block) const;

 private:
  using Passes = std::function<void(Strategy&, const std::vector<MicroBatch>&)>;
  Activations run(const std::vector<BatchShape>& shapes, const Passes& passes);

  const PlannedLayout& layout_;
  DryRun run_;
};

}  // namespace tessera
