// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Stopping between steps because somebody outside asks for it: a scheduler, a time limit, a
/// person.
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/comm/late_vote.h"

namespace tessera {

/// While it exists these signals are noted instead of ending the process; a second one ends it as
/// without this. Those that are ignored stay so. One at a time in a process.
class StopSignals {
 public:
  /// Takes over these signals until it is destroyed.
  explicit StopSignals(const std::vector<int>& numbers = {SIGTERM, SIGUSR1, SIGINT});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int caught() const;  ///< its number; 0: none yet

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

/// Lets every rank stop after the same step, whichever was asked to.
class StopAgreement {
 public:
  explicit StopAgreement(Communicator& world) : world_(world) {}  ///< the world outlives it
  /// Collective, between steps: what any rank was asked for in an earlier call, the same on all
  /// ranks. The answer to this call is read in the next one, so the host waits for nothing it has
  /// just issued; a lone rank has it at once.
  bool agree(bool asked);

 private:
  Communicator& world_;
  std::optional<LateVote> asked_;
};

}  // namespace tessera
