// SPDX-License-Identifier: MIT
#pragma once
// --check_communication: compares a rank's collectives in the first step with a dry run of it.
#include <cstddef>
#include <memory>
#include <optional>

#include "lib/comm/expected_operations.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/not_copied.h"
#include "tessera/plan/dry_step.h"

namespace tessera::programs {

// Compares every operation before it starts, so that no rank waits for one that differs.
class CommunicationCheck : NotCopied {
 public:
  // Collective. world: the communicator of all ranks; must outlive this.
  explicit CommunicationCheck(Communicator& world);

  // The communicator to build the mesh from.
  Communicator& world() { return *recorded_; }
  // Begins the strategy's first step; later ones are not compared. Throws as dry_step().
  void step_begins(const DryStep& step);
  // Number of compared operations; empty after later steps. Throws Error(kInternal) if some are
  // missing.
  std::optional<size_t> step_ends();

 private:
  const std::shared_ptr<CommunicationLedger> ledger_;
  std::unique_ptr<Communicator> recorded_;
  std::optional<ExpectedOperations> expected_;
  bool done_ = false;
};

}  // namespace tessera::programs
