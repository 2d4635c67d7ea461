// SPDX-License-Identifier: MIT
#pragma once
// With --check_communication: whether a rank calls in the first step what a dry run of it says.
#include <cstddef>
#include <memory>
#include <optional>

#include "lib/comm/expected_operations.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/not_copied.h"
#include "tessera/plan/dry_step.h"

namespace tessera::programs {

// Every operation is compared before it starts, so no rank waits in vain for one that differs.
class CommunicationCheck : NotCopied {
 public:
  // Collective. world: of all ranks; outlives it.
  explicit CommunicationCheck(Communicator& world);

  // To make the mesh of.
  Communicator& world() { return *recorded_; }
  // The first step that is made of the strategy; others are not looked at. Throws as dry_step().
  void step_begins(const DryStep& step);
  // Operations that were compared; nothing after any step but the first. Throws Error(kInternal)
  // where some are missing.
  std::optional<size_t> step_ends();

 private:
  const std::shared_ptr<CommunicationLedger> ledger_;
  std::unique_ptr<Communicator> recorded_;
  std::optional<ExpectedOperations> expected_;
  bool done_ = false;
};

}  // namespace tessera::programs
