// SPDX-License-Identifier: MIT
#include "lib/run/communication_check.h"

#include "lib/plan/dry_first_step.h"

namespace tessera::programs {

CommunicationCheck::CommunicationCheck(Communicator& world)
    : ledger_(std::make_shared<CommunicationLedger>()),
      recorded_(record_operations(
          world.split(0, world.rank()), ledger_, [this](const LedgerOperation& operation) {
            expected_->next(operation, ledger_->communicators[operation.communicator]);
          })) {
  ledger_->paused = true;
}

void CommunicationCheck::step_begins(const DryStep& step) {
  if (done_) return;
  expected_.emplace(dry_first_step(step), "the first step");
  ledger_->paused = false;
}

std::optional<size_t> CommunicationCheck::step_ends() {
  if (done_) return {};
  done_ = true;
  ledger_->paused = true;
  ledger_->clear();
  expected_->require_all();
  return expected_->count();
}

}  // namespace tessera::programs
