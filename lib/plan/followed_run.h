// SPDX-License-Identifier: MIT
#pragma once
// One rank's dry run that follows gradients and parameters: see [Note: gradients and parameters are
// followed].
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/plan/value_rules.h"
#include "tessera/plan/check_communication.h"

namespace tessera {

// A piece of a gradient as the update uses it, with the sums over ranks that it contains.
struct FollowedGradient {
  std::string name;
  int64_t elements = 0;
  int step = 0;
  std::vector<KnownGradient> parts;  // without duplicates
};

// Operations of a rank, and the state of its values.
struct RankRun {
  CommunicationLedger ledger;  // of attach() and two steps
  std::vector<int64_t> steps;  // first operation of each step
  std::vector<FollowedGradient> gradients;
  std::vector<CommunicationProblem> problems;
  std::set<std::string> partial;  // parameters whose replicas hold partial gradient sums
  std::set<std::string> cut;      // parameters of which the rank holds a slice
  std::string note;               // why gradients could not be checked
};

// Throws as dry_step(). With options.wrap, exceptions of the run become problems.
RankRun follow_run(const DryStep& step, const MeshCoordinate& coordinate,
                   const CommunicationCheckOptions& options);

}  // namespace tessera
