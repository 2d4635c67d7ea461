// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Stop signals: ending a run between steps on request of a scheduler, a time limit or a person.
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/comm/async_flag_reduce.h"

namespace tessera {

/// Catches signals while it exists instead of ending the process. A second signal has its default
/// effect; ignored signals stay ignored. At most one object per process.
class StopSignals {
 public:
  /// Installs handlers for these signals until destroyed.
  explicit StopSignals(const std::vector<int>& numbers = {SIGTERM, SIGUSR1, SIGINT});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int caught() const;  ///< number of the caught signal; 0: none yet

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

/// Agreement of all ranks to stop after the same step.
class StopAgreement {
 public:
  explicit StopAgreement(Communicator& world) : world_(world) {}  ///< the world outlives it
  /// Whether any rank asked to stop in an earlier call; equal on all ranks. Collective, between
  /// steps. Results are read one call late, so the host does not wait for work just issued; a
  /// single rank gets its own at once.
  bool agree(bool asked);

 private:
  Communicator& world_;
  std::optional<AsyncFlagReduce> asked_;
};

}  // namespace tessera
