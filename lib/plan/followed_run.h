// SPDX-License-Identifier: MIT
#pragma once
// One rank's dry run, in which gradients and parameters are followed: see
// [Note: gradients and parameters are followed].
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/plan/value_rules.h"
#include "tessera/plan/check_communication.h"

namespace tessera {

// A piece of a gradient as the update takes it, and what has summed it.
struct FollowedGradient {
  std::string name;
  int64_t elements = 0;
  int step = 0;
  std::vector<KnownGradient> parts;  // each once
};

// What a rank called, and what became of the values.
struct RankRun {
  CommunicationLedger ledger;  // attach() and two steps
  std::vector<int64_t> steps;  // of each the first operation
  std::vector<FollowedGradient> gradients;
  std::vector<CommunicationProblem> problems;
  std::set<std::string> partial;  // parameters whose holders have parts of the gradient's sum
  std::string note;               // why gradients could not be looked at
};

// Throws as dry_step() does; where options.wrap is given, what the run throws becomes a problem.
RankRun follow_run(const DryStep& step, const MeshCoordinate& coordinate,
                   const CommunicationCheckOptions& options);

}  // namespace tessera
