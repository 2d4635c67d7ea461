// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Communication check: whether the operations of all ranks match, found without running them.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/fake_mesh.h"
#include "tessera/plan/dry_step.h"

namespace tessera {

/// A mismatch of operations that would fail, hang, or give wrong numbers.
struct CommunicationProblem {
  /// The violated rule.
  enum class Rule {
    kMatch,      ///< ranks of a communicator call different collectives, or in different orders
    kMessage,    ///< a send and its receive differ, or one is missing
    kDeadlock,   ///< a cyclic wait of ranks
    kGradient,   ///< a gradient is not the sum over exactly the ranks that share it
    kParameter,  ///< a parameter is used that was not gathered since its last update
    kRefused,    ///< a strategy or communicator threw: see `text`
  };
  Rule rule = Rule::kMatch;  ///< the violated rule
  int rank = 0;              ///< rank of the world
  int other_rank = -1;       ///< the other rank involved; -1: none
  /// Index of the operation among the rank's in `step`, from 0. -1: none.
  int64_t operation = -1;
  int step = 0;        ///< 0: attach(), then the steps from 1; always 0 from match_operations()
  std::string call;    ///< the operation: "all_reduce of 512 Float over world.1c0"
  std::string tensor;  ///< LedgerOperation::name, or the parameter
  std::string phase;   ///< phase of the step: "backward"
  std::string text;    ///< description, with the other rank's operation
};

/// One line with rank, step, operation, tensor and description.
std::string to_text(const CommunicationProblem& problem);

/// Operations of one rank of a world; ranks with equal ones share a ledger.
struct RankOperations {
  const CommunicationLedger* calls = nullptr;  ///< outlives this
  /// The rank's communicators, in the numbering of `calls`.
  std::vector<LedgerCommunicator> communicators;
};

/// Matches the operations of all ranks of a world, by rank. Per communicator: the same collectives
/// in the same order, with equal count, dtype, reduce operation and root. Per pair of ranks: each
/// send with its receive. Overall: no deadlock. Reports the first problem of each communicator,
/// pair of ranks or deadlock.
std::vector<CommunicationProblem> match_operations(std::span<const RankOperations> ranks);
/// match_operations() for ledgers that contain all communicators.
std::vector<CommunicationProblem> match_operations(std::span<const CommunicationLedger> ranks);

/// Options of check_communication().
struct CommunicationCheckOptions {
  /// Wraps each rank's world communicator: see FakeMesh.
  FakeMesh::Wrap wrap = {};
  /// Runs every rank; false: only ranks that may differ, from which the others follow.
  bool every_rank = false;
};

/// Result of a check.
struct CommunicationCheck {
  int ranks = 0;           ///< ranks of the world
  int runs = 0;            ///< number of ranks that ran; the others are equal to one of them
  int64_t operations = 0;  ///< operations of all ranks, in attach() and two steps
  std::vector<CommunicationProblem> problems;  ///< empty: none found
  std::vector<std::string> notes;              ///< rules that could not be checked, and why
};

/// Dry-runs attach() and two steps on the ranks of the mesh and matches their operations;
/// step.coordinate is ignored. Also tracks gradients and parameters: a gradient is summed once over
/// exactly the ranks that share it, and a parameter is gathered between its update and its use.
/// Throws like dry_step().
CommunicationCheck check_communication(const DryStep& step,
                                       const CommunicationCheckOptions& options = {});

}  // namespace tessera
