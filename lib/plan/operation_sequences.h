// SPDX-License-Identifier: MIT
#pragma once
// Operations of all ranks, sorted into the collectives of every communicator and the messages of
// every pair.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/plan/check_communication.h"

namespace tessera {

// A ledger's operations by its own communicators.
struct SortedOperations {
  using Indices = std::vector<size_t>;  // indices into the ledger's operations
  std::vector<Indices> collectives;     // by communicator
  // By communicator and the other rank.
  std::vector<std::map<int, Indices>> sends, receives;
};

// A communicator of the world.
struct SharedCommunicator {
  struct Member {
    int rank = 0;             // world rank
    size_t communicator = 0;  // index among the rank's communicators
    bool knows = false;       // the rank has this communicator
  };
  std::string name;
  std::vector<Member> members;  // by rank
};

class OperationSequences {
 public:
  explicit OperationSequences(std::span<const RankOperations> ranks);

  std::span<const RankOperations> ranks() const { return ranks_; }
  const std::vector<SharedCommunicator>& communicators() const { return communicators_; }
  // Index into communicators() for a rank's communicator.
  size_t shared(int rank, size_t communicator) const {
    return shared_[static_cast<size_t>(rank)][communicator];
  }
  const SortedOperations& sorted(int rank) const {
    return *sorted_of_rank_[static_cast<size_t>(rank)];
  }
  const LedgerOperation& operation(int rank, size_t place) const {
    return ranks_[static_cast<size_t>(rank)].calls->operations[place];
  }
  const SortedOperations::Indices& collectives(const SharedCommunicator::Member& member) const;
  const SortedOperations::Indices& messages(const SharedCommunicator::Member& member, bool sends,
                                            int other) const;
  // A problem with the rank's call at `place` filled in.
  CommunicationProblem problem(CommunicationProblem::Rule rule, int rank, size_t place,
                               const std::string& text) const;

 private:
  std::span<const RankOperations> ranks_;
  std::vector<SharedCommunicator> communicators_;
  std::vector<std::vector<size_t>> shared_;  // by rank and its communicator
  std::map<const CommunicationLedger*, SortedOperations> sorted_;
  std::vector<const SortedOperations*> sorted_of_rank_;
};

// "all_reduce of 512 Float, sum"
std::string call_text(const LedgerOperation& operation);

}  // namespace tessera
