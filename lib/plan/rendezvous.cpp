// SPDX-License-Identifier: MIT
// Simulates a run without buffering: see [Note: which semantics are checked].
#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "lib/plan/match_operations.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Event {
  bool waits = false;  // false: a start
  size_t start = 0;
};

// Events of a rank in order.
struct Program {
  std::vector<Event> events;
  std::vector<std::pair<size_t, size_t>> starts;  // operations [first, second)
  // By operation: index among its communicator's collectives, or the messages of its pair and
  // direction.
  std::vector<size_t> place;
};

Program program_of(const CommunicationLedger& ledger) {
  Program program;
  program.starts.resize(ledger.waited.size());
  std::vector<std::vector<size_t>> waits(ledger.operations.size() + 1);
  for (size_t start = 0; start < ledger.waited.size(); ++start) {
    if (ledger.waited[start] != CommunicationLedger::kNotWaited) {
      waits[static_cast<size_t>(ledger.waited[start])].push_back(start);
    }
  }
  std::map<std::tuple<size_t, int, int>, size_t> next;
  for (size_t o = 0; o <= ledger.operations.size(); ++o) {
    for (const size_t start : waits[o]) program.events.push_back({true, start});
    if (o == ledger.operations.size()) break;
    const LedgerOperation& each = ledger.operations[o];
    const auto start = static_cast<size_t>(each.start);
    if (o == 0 || each.start != ledger.operations[o - 1].start) {
      program.events.push_back({false, start});
      program.starts[start] = {o, o};
    }
    program.starts[start].second = o + 1;
    const bool sends = each.kind == OperationKind::kSend;
    const bool receives = each.kind == OperationKind::kRecv;
    const int peer = sends || receives ? each.peer : -1;
    program.place.push_back(next[{each.communicator, peer, sends ? 1 : 0}]++);
  }
  return program;
}

class Simulation {
 public:
  explicit Simulation(const OperationSequences& sequences) : sequences_(sequences) {
    std::map<const CommunicationLedger*, const Program*> made;
    for (const RankOperations& rank : sequences.ranks()) {
      const Program*& program = made[rank.calls];
      if (program == nullptr) program = &programs_.emplace_back(program_of(*rank.calls));
      Rank& state = ranks_.emplace_back();
      state.program = program;
      for (const auto& [first, end] : program->starts) state.left.push_back(end - first);
      state.messages.resize(rank.communicators.size());
      state.delayed.resize(rank.communicators.size());
    }
    arrived_.resize(sequences.communicators().size());
  }

  std::vector<CommunicationProblem> run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ready_.push_back(static_cast<int>(rank));
    while (!ready_.empty()) {
      const int rank = ready_.front();
      ready_.pop_front();
      advance(rank);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < ranks_[rank].program->events.size()) {
        return {describe(static_cast<int>(rank))};
      }
    }
    return {};
  }

 private:
  struct Delayed {  // a collective behind incomplete messages
    size_t operation = 0, messages = 0;
  };
  struct Rank {
    const Program* program = nullptr;
    size_t next = 0;                           // next event
    std::vector<size_t> left;                  // by start: incomplete operations
    std::vector<size_t> messages;              // by communicator: incomplete messages
    std::vector<std::deque<Delayed>> delayed;  // by communicator
  };
  // Operations: sends and receives.
  using Ends = std::pair<std::vector<size_t>, std::vector<size_t>>;

  Rank& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const Rank& of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  void advance(int rank) {
    Rank& own = of(rank);
    const Program& program = *own.program;
    for (; own.next < program.events.size(); ++own.next) {
      const Event& event = program.events[own.next];
      if (event.waits) {
        if (own.left[event.start] > 0) return;
        continue;
      }
      const auto [first, end] = program.starts[event.start];
      // Operations of a group start together: its messages do not delay its collectives.
      for (size_t o = first; o < end; ++o) {
        if (!is_message(rank, o)) begin_collective(rank, o);
      }
      for (size_t o = first; o < end; ++o) {
        if (is_message(rank, o)) begin_message(rank, o);
      }
    }
  }

  bool is_message(int rank, size_t o) const {
    const OperationKind kind = sequences_.operation(rank, o).kind;
    return kind == OperationKind::kSend || kind == OperationKind::kRecv;
  }

  void begin_collective(int rank, size_t o) {
    const size_t comm = sequences_.operation(rank, o).communicator;
    if (const size_t messages = of(rank).messages[comm]; messages > 0) {
      of(rank).delayed[comm].push_back({o, messages});
    } else {
      arrive(rank, o);
    }
  }

  void arrive(int rank, size_t o) {
    const size_t comm = sequences_.shared(rank, sequences_.operation(rank, o).communicator);
    const size_t place = of(rank).program->place[o];
    const auto& members = sequences_.communicators()[comm].members;
    std::vector<size_t>& arrived = arrived_[comm];
    if (arrived.size() <= place) arrived.resize(place + 1);
    if (++arrived[place] < members.size()) return;
    for (const SharedCommunicator::Member& member : members) {
      complete(member.rank, sequences_.collectives(member)[place]);
    }
  }

  void begin_message(int rank, size_t o) {
    const LedgerOperation& each = sequences_.operation(rank, o);
    const auto& own = sequences_.ranks()[static_cast<size_t>(rank)].communicators;
    ++of(rank).messages[each.communicator];
    const int me = own[each.communicator].rank;
    const bool sends = each.kind == OperationKind::kSend;
    const size_t comm = sequences_.shared(rank, each.communicator);
    auto& [sent, received] = messages_[{comm, sends ? me : each.peer, sends ? each.peer : me}];
    (sends ? sent : received).push_back(o);
    const size_t place = (sends ? sent : received).size() - 1;
    if ((sends ? received : sent).size() <= place) return;
    const auto& members = sequences_.communicators()[comm].members;
    const int other = members[static_cast<size_t>(each.peer)].rank;
    end_message(sends ? rank : other, sent[place]);
    end_message(sends ? other : rank, received[place]);
  }

  void end_message(int rank, size_t o) {
    complete(rank, o);
    const size_t comm = sequences_.operation(rank, o).communicator;
    --of(rank).messages[comm];
    std::deque<Delayed>& delayed = of(rank).delayed[comm];
    for (Delayed& each : delayed) each.messages -= o < each.operation ? 1 : 0;
    while (!delayed.empty() && delayed.front().messages == 0) {
      const size_t begins = delayed.front().operation;
      delayed.pop_front();
      arrive(rank, begins);
    }
  }

  void complete(int rank, size_t o) {
    Rank& own = of(rank);
    const auto start = static_cast<size_t>(sequences_.operation(rank, o).start);
    if (--own.left[start] > 0 || own.next >= own.program->events.size()) return;
    const Event& event = own.program->events[own.next];
    if (event.waits && event.start == start) ready_.push_back(rank);
  }

  // An incomplete operation that the rank waits for, and a rank that has not reached it.
  std::pair<size_t, int> blocked(int rank) const {
    const Rank& own = of(rank);
    const auto [first, end] = own.program->starts[own.program->events[own.next].start];
    for (size_t o = first; o < end; ++o) {
      const LedgerOperation& each = sequences_.operation(rank, o);
      const size_t comm = sequences_.shared(rank, each.communicator);
      const auto& members = sequences_.communicators()[comm].members;
      const size_t place = own.program->place[o];
      for (size_t m = 0; m < members.size(); ++m) {
        if (is_message(rank, o) && static_cast<int>(m) != each.peer) continue;
        if (members[m].rank == rank) continue;
        const bool sends = each.kind == OperationKind::kSend;
        const int me =
            sequences_.ranks()[static_cast<size_t>(rank)].communicators[each.communicator].rank;
        const auto& theirs = is_message(rank, o) ? sequences_.messages(members[m], !sends, me)
                                                 : sequences_.collectives(members[m]);
        if (place >= theirs.size()) continue;
        if (!has_started(members[m].rank, theirs[place])) return {o, members[m].rank};
      }
    }
    return {first, -1};
  }

  bool has_started(int rank, size_t o) const {
    const Rank& other = of(rank);
    return other.next >= other.program->events.size() ||
           other.program->starts[other.program->events[other.next].start].first > o;
  }

  CommunicationProblem describe(int rank) const {
    const auto [operation, peer] = blocked(rank);
    CommunicationProblem problem = sequences_.problem(CommunicationProblem::Rule::kDeadlock, rank,
                                                      operation, "the ranks wait for each other");
    problem.other_rank = peer;
    std::vector<int> seen{rank};
    for (int next = peer; next >= 0 && std::ranges::find(seen, next) == seen.end();) {
      seen.push_back(next);
      if (of(next).next >= of(next).program->events.size()) break;
      const auto [theirs, then] = blocked(next);
      const LedgerOperation& waits = sequences_.operation(next, theirs);
      problem.text += concat("; rank ", next, " has not started it and waits in operation ", theirs,
                             " (", call_text(waits), " for \"", waits.name, "\")");
      if (seen.size() > 4) break;
      next = then;
    }
    return problem;
  }

  const OperationSequences& sequences_;
  std::deque<Program> programs_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<size_t>> arrived_;               // by communicator and index
  std::map<std::tuple<size_t, int, int>, Ends> messages_;  // by communicator, source, destination
  std::deque<int> ready_;
};

}  // namespace

std::vector<CommunicationProblem> find_deadlock(const OperationSequences& sequences) {
  return Simulation(sequences).run();
}

}  // namespace tessera
