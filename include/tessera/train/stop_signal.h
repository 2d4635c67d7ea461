#pragma once
// Stopping between steps because somebody outside asks for it: a scheduler, a time limit, a person.
#include <optional>

#include "tessera/comm/late_vote.h"

namespace tessera {

// While it exists SIGTERM and SIGUSR1 are noted instead of ending the process; a second one ends it
// as without this. One at a time in a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int caught() const;  // its number; 0: none yet
};

// Lets every rank stop after the same step, whichever was asked to.
class StopAgreement {
 public:
  explicit StopAgreement(Communicator& world) : world_(world) {}
  // Collective, between steps: what any rank was asked for in an earlier call, the same on all
  // ranks. The answer to this call is read in the next one, so the host waits for nothing it has
  // just issued.
  bool agree(bool asked);

 private:
  Communicator& world_;
  std::optional<LateVote> asked_;
};

}  // namespace tessera
