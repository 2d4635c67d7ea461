// SPDX-License-Identifier: MIT
#include "tessera/plan/check_communication.h"

#include <set>
#include <string>
#include <utility>

#include "lib/plan/gradient_sharers.h"
#include "lib/plan/operation_sequences.h"
#include "lib/plan/rank_sequences.h"
#include "tessera/core/error.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {
namespace {

// Converts the operation's index in the rank's run to one in its step.
void place_in_step(const RankRun& run, CommunicationProblem& problem) {
  if (problem.operation < 0) return;
  for (size_t step = run.steps.size(); step-- > 0;) {
    if (run.steps[step] > problem.operation) continue;
    problem.step = static_cast<int>(step);
    problem.operation -= run.steps[step];
    return;
  }
}

void name_call(const RankRun& run, CommunicationProblem& problem) {
  if (problem.operation < 0 || !problem.call.empty()) return;
  const LedgerOperation& of = run.ledger.operations[static_cast<size_t>(problem.operation)];
  problem.call = call_text(of) + " over " + run.ledger.communicators[of.communicator].name;
}

}  // namespace

CommunicationCheck check_communication(const DryStep& step,
                                       const CommunicationCheckOptions& options) {
  check(!step.micro_batches.empty(), ErrorCode::kInvalidArgument,
        "check of communication: it has no micro-batches");
  const bool matrices = whole_matrices(step.optimizer) != nullptr;
  const RankSequences::Run run = [&](const MeshCoordinate& at) {
    return follow_run(step, at, options);
  };
  const RankSequences sequences(step.mesh, options.every_rank || matrices, run);
  CommunicationCheck result{.ranks = static_cast<int>(sequences.ranks().size()),
                            .runs = sequences.runs()};
  for (const RankOperations& rank : sequences.ranks()) {
    result.operations += static_cast<int64_t>(rank.calls->operations.size());
  }
  std::set<std::string> notes;
  for (int rank = 0; rank < result.ranks; ++rank) {
    if (!sequences.ran(rank)) continue;
    const RankRun& own = sequences.run_of(rank);
    for (CommunicationProblem problem : own.problems) {
      problem.rank = rank;
      result.problems.push_back(std::move(problem));
    }
    if (!own.note.empty() && notes.insert(own.note).second) {
      result.notes.push_back("sums of gradients are not looked at: " + own.note);
    }
  }
  for (CommunicationProblem& each : match_operations(sequences.ranks())) {
    result.problems.push_back(std::move(each));
  }
  for (CommunicationProblem& each : find_wrong_sums(step, sequences)) {
    result.problems.push_back(std::move(each));
  }
  for (CommunicationProblem& each : result.problems) {
    const RankRun& own = sequences.run_of(each.rank);
    name_call(own, each);
    place_in_step(own, each);
  }
  return result;
}

}  // namespace tessera
