// SPDX-License-Identifier: MIT
#include "lib/plan/match_operations.h"

#include <algorithm>
#include <array>
#include <set>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Member = SharedCommunicator::Member;
using Indices = SortedOperations::Indices;
using Rule = CommunicationProblem::Rule;

bool has_root(OperationKind kind) { return kind == OperationKind::kBroadcast; }
bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
}

// Elements that a rank sends to, or receives from, the rank at `place`.
int64_t part(const LedgerOperation& o, const std::vector<int64_t>& counts, size_t place,
             size_t members) {
  return counts.empty() ? o.numel / static_cast<int64_t>(members) : counts[place];
}

// Equal operations, except for the counts of an all_to_all with unequal parts.
bool agree(const LedgerOperation& a, const LedgerOperation& b) {
  const bool unequal = !a.input_counts.empty() || !b.input_counts.empty();
  return a.kind == b.kind && a.dtype == b.dtype && (unequal || a.numel == b.numel) &&
         (!reduces(a.kind) || a.reduce == b.reduce) && (!has_root(a.kind) || a.peer == b.peer) &&
         a.name == b.name;
}

std::string called(const LedgerOperation& o) {
  return concat(call_text(o), " for \"", o.name, "\"");
}

class Matcher {
 public:
  explicit Matcher(const OperationSequences& sequences) : sequences_(sequences) {}

  std::vector<CommunicationProblem> run() {
    for (const SharedCommunicator& each : sequences_.communicators()) {
      match_collectives(each);
      match_messages(each);
    }
    return std::move(problems_);
  }

 private:
  const LedgerOperation& at(const Member& member, size_t place) const {
    return sequences_.operation(member.rank, place);
  }
  // True if both have the same operations at the same indices.
  bool same_sequence(const Member& a, const Member& b) const {
    return a.knows && b.knows && a.communicator == b.communicator &&
           &sequences_.sorted(a.rank) == &sequences_.sorted(b.rank);
  }

  void match_collectives(const SharedCommunicator& comm) {
    const auto& members = comm.members;
    size_t first = 0, longest = 0;  // the first index at which ranks differ
    bool differ = false;
    for (const Member& member : members) {
      longest = std::max(longest, sequences_.collectives(member).size());
    }
    first = longest;
    const Member& front = members.front();
    for (const Member& member : members) {
      if (same_sequence(front, member)) continue;
      const Indices &ours = sequences_.collectives(front), &theirs = sequences_.collectives(member);
      size_t k = 0;
      while (k < ours.size() && k < theirs.size() &&
             agree(at(front, ours[k]), at(member, theirs[k])))
        ++k;
      if (k == ours.size() && k == theirs.size()) continue;
      differ = true;
      first = std::min(first, k);
    }
    if (differ) return report(comm, first);
    match_parts(comm);
  }

  // Groups ranks by their call at index k; the smallest group is reported against the largest.
  void report(const SharedCommunicator& comm, size_t k) {
    std::vector<std::vector<const Member*>> groups;
    const auto call_of = [&](const Member& member) {
      const Indices& indices = sequences_.collectives(member);
      return k < indices.size() ? &at(member, indices[k]) : nullptr;
    };
    for (const Member& member : comm.members) {
      const LedgerOperation* own = call_of(member);
      const auto same = std::ranges::find_if(groups, [&](const auto& group) {
        const LedgerOperation* other = call_of(*group.front());
        return own == nullptr || other == nullptr ? own == other : agree(*own, *other);
      });
      if (same == groups.end()) {
        groups.push_back({&member});
      } else {
        same->push_back(&member);
      }
    }
    std::ranges::stable_sort(groups, {}, [](const auto& group) { return group.size(); });
    const Member& odd = *groups.front().front();
    const Member& usual = *groups.back().front();
    const LedgerOperation *own = call_of(odd), *other = call_of(usual);
    const Member& named = own != nullptr ? odd : usual;
    std::string text = concat("collective ", k, " of the communicator: ");
    if (own == nullptr) {
      text += concat("rank ", odd.rank, " calls no more than ", k, " there");
    } else {
      text += concat("rank ", usual.rank, " calls ",
                     other == nullptr ? std::string("nothing more") : called(*other));
      text += guess(odd, usual, k);
    }
    CommunicationProblem problem =
        sequences_.problem(Rule::kMatch, named.rank, sequences_.collectives(named)[k], text);
    problem.other_rank = own != nullptr ? usual.rank : odd.rank;
    problems_.push_back(std::move(problem));
  }

  // Hint that one of the two seems to skip an operation.
  std::string guess(const Member& odd, const Member& usual, size_t k) const {
    const Indices &ours = sequences_.collectives(odd), &theirs = sequences_.collectives(usual);
    if (k + 1 < ours.size() && k + 1 < theirs.size() &&
        agree(at(odd, ours[k + 1]), at(usual, theirs[k + 1]))) {
      return "";  // only this operation differs
    }
    const auto skips = [&](const Member& a, const Indices& of_a, const Member& b,
                           const Indices& of_b) {
      return k < of_a.size() && k + 1 < of_b.size() && agree(at(a, of_a[k]), at(b, of_b[k + 1]));
    };
    const bool odd_skips = skips(odd, ours, usual, theirs);
    const bool usual_skips = skips(usual, theirs, odd, ours);
    if (odd_skips && usual_skips) return ", and the next one in the other order";
    if (odd_skips) return concat("; rank ", odd.rank, " seems to skip it");
    if (usual_skips) return concat("; rank ", odd.rank, " seems to call one too many");
    return "";
  }

  void match_parts(const SharedCommunicator& comm) {
    const size_t count = comm.members.size();
    const Indices& first = sequences_.collectives(comm.members.front());
    for (size_t k = 0; k < first.size(); ++k) {
      if (at(comm.members.front(), first[k]).kind != OperationKind::kAllToAll) continue;
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < count; ++j) {
          const Member &from = comm.members[i], &to = comm.members[j];
          const size_t place = sequences_.collectives(from)[k];
          const LedgerOperation& gives = at(from, place);
          const LedgerOperation& takes = at(to, sequences_.collectives(to)[k]);
          const int64_t given = part(gives, gives.input_counts, j, count);
          const int64_t taken = part(takes, takes.output_counts, i, count);
          if (given == taken) continue;
          CommunicationProblem problem = sequences_.problem(
              Rule::kMatch, from.rank, place,
              concat("it gives ", given, " elements to rank ", to.rank, ", which takes ", taken));
          problem.other_rank = to.rank;
          problems_.push_back(std::move(problem));
          return;
        }
      }
    }
  }

  void match_messages(const SharedCommunicator& comm) {
    for (size_t i = 0; i < comm.members.size(); ++i) {
      const Member& member = comm.members[i];
      if (!member.knows) continue;
      const SortedOperations& sorted = sequences_.sorted(member.rank);
      const int place = static_cast<int>(i);
      for (const auto& [peer, sends] : sorted.sends[member.communicator]) {
        const Member& to = comm.members[static_cast<size_t>(peer)];
        match_pair(member, sends, to, sequences_.messages(to, /*sends=*/false, place));
      }
      for (const auto& [peer, receives] : sorted.receives[member.communicator]) {
        const Member& from = comm.members[static_cast<size_t>(peer)];
        if (!sequences_.messages(from, /*sends=*/true, place).empty()) continue;  // reported above
        match_pair(from, sequences_.messages(from, /*sends=*/true, place), member, receives);
      }
    }
  }

  void match_pair(const Member& from, const Indices& sends, const Member& to,
                  const Indices& receives) {
    for (size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
      const bool sent = k < sends.size(), received = k < receives.size();
      if (sent && received) {
        const LedgerOperation &send = at(from, sends[k]), &receive = at(to, receives[k]);
        if (send.numel == receive.numel && send.dtype == receive.dtype && send.name == receive.name)
          continue;
      }
      const Member &named = sent ? from : to, &other = sent ? to : from;
      const Indices &own = sent ? sends : receives, &others = sent ? receives : sends;
      const char* done = sent ? "receives" : "sends";
      const std::string text =
          sent && received ? concat("message ", k, " of the pair: rank ", other.rank, " calls ",
                                    called(at(other, others[k])))
                           : concat("message ", k, " of the pair: rank ", other.rank, " ", done,
                                    " no more than ", others.size(), sent ? " from it" : " to it");
      CommunicationProblem problem = sequences_.problem(Rule::kMessage, named.rank, own[k], text);
      problem.other_rank = other.rank;
      problems_.push_back(std::move(problem));
      return;
    }
  }

  const OperationSequences& sequences_;
  std::vector<CommunicationProblem> problems_;
};

}  // namespace

std::vector<CommunicationProblem> find_mismatches(const OperationSequences& sequences) {
  return Matcher(sequences).run();
}

std::vector<CommunicationProblem> match_operations(std::span<const RankOperations> ranks) {
  const OperationSequences sequences(ranks);
  std::vector<CommunicationProblem> problems = find_mismatches(sequences);
  if (problems.empty()) problems = find_deadlock(sequences);
  return problems;
}

std::vector<CommunicationProblem> match_operations(std::span<const CommunicationLedger> ledgers) {
  std::vector<RankOperations> ranks;
  for (const CommunicationLedger& ledger : ledgers)
    ranks.push_back({&ledger, ledger.communicators});
  return match_operations(ranks);
}

std::string to_text(const CommunicationProblem& p) {
  std::string text = concat("rank ", p.rank);
  if (p.operation >= 0) {
    text += p.step > 0 ? concat(", step ", p.step) : "";
    text += concat(", operation ", p.operation, " (", p.call, ")");
  }
  if (!p.tensor.empty()) text += concat(", \"", p.tensor, "\"");
  if (!p.phase.empty()) text += concat(", in ", p.phase);
  return text + ": " + p.text;
}

}  // namespace tessera
