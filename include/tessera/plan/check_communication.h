// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Whether the ranks of a layout call operations that fit together: found without running them.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/fake_mesh.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

/// Something that ranks call and that cannot run, or would give wrong numbers.
struct CommunicationProblem {
  /// Which rule is broken.
  enum class Rule {
    kMatch,      ///< ranks of a communicator call different collectives, or in another order
    kMessage,    ///< a send and its receive differ, or one of them is missing
    kDeadlock,   ///< ranks wait for each other
    kGradient,   ///< a gradient is not the sum over exactly the ranks that share it
    kParameter,  ///< a parameter is used that was not gathered since its last update
    kRefused,    ///< the strategy or a communicator refuses what is called: `text` says why
  };
  Rule rule = Rule::kMatch;  ///< the rule
  int rank = 0;              ///< of the world
  int other_rank = -1;       ///< with which it is at odds; -1: nobody
  /// Its place among what the rank calls: from 0, in `step`. -1: no operation is there.
  int64_t operation = -1;
  int step = 0;        ///< 0: attach(), then the steps from 1; of match_operations() always 0
  std::string call;    ///< what it is: "all_reduce of 512 Float over world.1c0"
  std::string tensor;  ///< LedgerOperation::name, or the parameter
  std::string phase;   ///< of the run: "backward"
  std::string text;    ///< what is wrong, and what the other rank has
};

/// One line: rank, step, operation, tensor, and what is wrong.
std::string to_text(const CommunicationProblem& problem);

/// What one rank of a world calls. Ranks that do the same share a ledger.
struct RankOperations {
  const CommunicationLedger* calls = nullptr;     ///< outlives this
  std::vector<LedgerCommunicator> communicators;  ///< the rank's own, as `calls` numbers them
};

/// Finds what cannot run, given what every rank of the world calls, by rank. Per communicator the
/// same collectives in the same order, with equal count, dtype, reduce operation and root; per pair
/// of ranks each send with its receive; nobody waits for ever. One problem for each communicator,
/// pair of ranks or deadlock: what follows from the first is not listed.
std::vector<CommunicationProblem> match_operations(std::span<const RankOperations> ranks);
/// Likewise, of ledgers with all communicators.
std::vector<CommunicationProblem> match_operations(std::span<const CommunicationLedger> ranks);

/// How to check a step.
struct CommunicationCheckOptions {
  /// Around the world of each rank that runs: see FakeMesh.
  FakeMesh::Wrap wrap = {};
  /// Every rank runs; else those that may differ, and the others are derived from them.
  bool every_rank = false;
};

/// What a check found.
struct CommunicationCheck {
  int ranks = 0;                               ///< of the world
  int runs = 0;                                ///< of them ran; the others do the same
  int64_t operations = 0;                      ///< of all ranks, in attach() and two steps
  std::vector<CommunicationProblem> problems;  ///< empty: all is well
  std::vector<std::string> notes;              ///< rules that could not be looked at, and why
};

/// Runs attach() and two steps dry on the ranks of the mesh, whatever step.coordinate is, and
/// matches what they call. Also follows gradients and parameters: what an update takes is summed
/// once over every rank that shares it, and what a block uses was gathered since the last update.
/// Throws what dry_step() throws.
CommunicationCheck check_communication(const DryStep& step,
                                       const CommunicationCheckOptions& options = {});

}  // namespace tessera
