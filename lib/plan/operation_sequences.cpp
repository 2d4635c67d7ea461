// SPDX-License-Identifier: MIT
#include "lib/plan/operation_sequences.h"

#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

SortedOperations sort_operations(const CommunicationLedger& ledger, size_t communicators) {
  SortedOperations sorted;
  sorted.collectives.resize(communicators);
  sorted.sends.resize(communicators);
  sorted.receives.resize(communicators);
  for (size_t place = 0; place < ledger.operations.size(); ++place) {
    const LedgerOperation& each = ledger.operations[place];
    if (each.kind == OperationKind::kSend) {
      sorted.sends[each.communicator][each.peer].push_back(place);
    } else if (each.kind == OperationKind::kRecv) {
      sorted.receives[each.communicator][each.peer].push_back(place);
    } else {
      sorted.collectives[each.communicator].push_back(place);
    }
  }
  return sorted;
}

const SortedOperations::Indices& nothing() {
  static const SortedOperations::Indices none;
  return none;
}

}  // namespace

std::string call_text(const LedgerOperation& operation) {
  std::string text = name_of(operation.kind);
  if (operation.kind == OperationKind::kBarrier) return text;
  text += concat(" of ", operation.numel, " ", operation.dtype);
  constexpr const char* kReductions[] = {", sum", ", max", ", min"};
  if (operation.kind == OperationKind::kAllReduce ||
      operation.kind == OperationKind::kReduceScatter) {
    text += kReductions[static_cast<size_t>(operation.reduce)];
  }
  if (operation.kind == OperationKind::kBroadcast) text += concat(" from ", operation.peer);
  if (operation.kind == OperationKind::kSend) text += concat(" to ", operation.peer);
  if (operation.kind == OperationKind::kRecv) text += concat(" from ", operation.peer);
  if (!operation.input_counts.empty()) text += " in unequal parts";
  return text;
}

OperationSequences::OperationSequences(std::span<const RankOperations> ranks) : ranks_(ranks) {
  std::map<std::pair<std::string, std::vector<int>>, size_t> places;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankOperations& own = ranks[rank];
    std::vector<size_t>& shared = shared_.emplace_back();
    for (size_t c = 0; c < own.communicators.size(); ++c) {
      const LedgerCommunicator& each = own.communicators[c];
      const auto [found, added] =
          places.try_emplace({each.name, each.ranks}, communicators_.size());
      if (added) {
        SharedCommunicator made{.name = each.name};
        for (const int member : each.ranks) made.members.push_back({.rank = member});
        communicators_.push_back(std::move(made));
      }
      shared.push_back(found->second);
      SharedCommunicator::Member& member =
          communicators_[found->second].members[static_cast<size_t>(each.rank)];
      member.communicator = c;
      member.knows = true;
    }
    const auto [found, added] = sorted_.try_emplace(own.calls);
    if (added) found->second = sort_operations(*own.calls, own.communicators.size());
    sorted_of_rank_.push_back(&found->second);
  }
}

const SortedOperations::Indices& OperationSequences::collectives(
    const SharedCommunicator::Member& member) const {
  return member.knows ? sorted(member.rank).collectives[member.communicator] : nothing();
}

const SortedOperations::Indices& OperationSequences::messages(
    const SharedCommunicator::Member& member, bool sends, int other) const {
  if (!member.knows) return nothing();
  const SortedOperations& all = sorted(member.rank);
  const auto& by_peer = (sends ? all.sends : all.receives)[member.communicator];
  const auto found = by_peer.find(other);
  return found == by_peer.end() ? nothing() : found->second;
}

CommunicationProblem OperationSequences::problem(CommunicationProblem::Rule rule, int rank,
                                                 size_t place, const std::string& text) const {
  const LedgerOperation& of = operation(rank, place);
  const auto& own = ranks_[static_cast<size_t>(rank)].communicators;
  return {.rule = rule,
          .rank = rank,
          .operation = static_cast<int64_t>(place),
          .call = call_text(of) + " over " + own[of.communicator].name,
          .tensor = of.name,
          .phase = of.phase,
          .text = text};
}

}  // namespace tessera
