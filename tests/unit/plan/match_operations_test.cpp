// SPDX-License-Identifier: MIT
// Checks of small hand-made ledgers.

#include "tessera/plan/check_communication.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

using Kind = OperationKind;
using Rule = CommunicationProblem::Rule;

// Ranks of a world and of a second communicator over all of them.
class Ranks {
 public:
  explicit Ranks(int count) : ledgers_(static_cast<size_t>(count)) {
    std::vector<int> all;
    for (int rank = 0; rank < count; ++rank) all.push_back(rank);
    for (int rank = 0; rank < count; ++rank) {
      ledgers_[static_cast<size_t>(rank)].communicators = {{"world", all, rank},
                                                           {"world.0c0", all, rank}};
    }
  }
  // Starts a group and returns its number.
  int64_t start(int rank, std::vector<LedgerOperation> operations) {
    CommunicationLedger& ledger = ledgers_[static_cast<size_t>(rank)];
    const auto number = static_cast<int64_t>(ledger.waited.size());
    ledger.waited.push_back(CommunicationLedger::kNotWaited);
    for (LedgerOperation& each : operations) {
      each.start = number;
      ledger.operations.push_back(std::move(each));
    }
    return number;
  }
  void wait(int rank, int64_t start) {
    CommunicationLedger& ledger = ledgers_[static_cast<size_t>(rank)];
    ledger.waited[static_cast<size_t>(start)] = static_cast<int64_t>(ledger.operations.size());
  }
  void run(int rank, LedgerOperation operation) { wait(rank, start(rank, {std::move(operation)})); }
  std::vector<CommunicationProblem> problems() const { return match_operations(ledgers_); }
  // The only problem.
  CommunicationProblem problem() const {
    const std::vector<CommunicationProblem> all = problems();
    REQUIRE(all.size() == 1);
    return all.front();
  }

 private:
  std::vector<CommunicationLedger> ledgers_;
};

LedgerOperation call(Kind kind, size_t communicator = 0, int peer = -1) {
  return {.kind = kind,
          .peer = peer,
          .communicator = communicator,
          .numel = 8,
          .dtype = at::kFloat,
          .name = "layer"};
}

}  // namespace

TEST_CASE("operations that fit together have no problem") {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    const int64_t sum = ranks.start(rank, {call(Kind::kAllReduce), call(Kind::kAllGather, 1)});
    ranks.run(rank, call(Kind::kBarrier));
    ranks.wait(rank, sum);
    ranks.run(rank, call(Kind::kBroadcast, 1, 2));
  }
  ranks.run(0, call(Kind::kSend, 0, 1));
  ranks.run(1, call(Kind::kRecv, 0, 0));
  CHECK(ranks.problems().empty());
}

TEST_CASE("the odd rank is named, with what the others call") {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.run(rank, call(Kind::kAllReduce));
    ranks.run(rank, call(rank == 1 ? Kind::kAllGather : Kind::kReduceScatter));
  }
  const CommunicationProblem problem = ranks.problem();
  CHECK(problem.rule == Rule::kMatch);
  CHECK(to_text(problem) ==
        "rank 1, operation 1 (all_gather of 8 Float over world), \"layer\": collective 1 of the "
        "communicator: rank 0 calls reduce_scatter of 8 Float, sum for \"layer\"");
}

TEST_CASE("a rank that calls too little, and a barrier alone, are found") {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.run(rank, call(Kind::kAllReduce));
    if (rank != 2) ranks.run(rank, call(Kind::kBarrier));
  }
  const CommunicationProblem problem = ranks.problem();
  CHECK(problem.other_rank == 2);
  CHECK(problem.text.find("rank 2 calls no more than 1") != std::string::npos);
}

TEST_CASE("what a rank gives to another is what that one takes") {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    LedgerOperation exchange = call(Kind::kAllToAll);
    exchange.input_counts = rank == 0 ? std::vector<int64_t>{3, 5} : std::vector<int64_t>{2, 6};
    exchange.output_counts = rank == 0 ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{4, 6};
    ranks.run(rank, exchange);
  }
  CHECK(ranks.problem().text == "it gives 5 elements to rank 1, which takes 4");
}

TEST_CASE("messages are matched for each pair in order") {
  Ranks ranks(2);
  for (const int64_t numel : {8, 16}) {
    LedgerOperation send = call(Kind::kSend, 0, 1), receive = call(Kind::kRecv, 0, 0);
    send.numel = numel;
    receive.numel = 24 - numel;
    ranks.start(0, {send});
    ranks.start(1, {receive});
  }
  const CommunicationProblem problem = ranks.problem();
  CHECK(problem.rule == Rule::kMessage);
  CHECK(problem.rank == 0);
  CHECK(problem.operation == 0);
  CHECK(problem.text.find("rank 1 calls recv of 16 Float") != std::string::npos);
}

TEST_CASE("ranks that wait for each other are found") {
  SECTION("two communicators in another order") {
    Ranks ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.run(rank, call(Kind::kAllReduce, rank == 0 ? 0 : 1));
      ranks.run(rank, call(Kind::kAllReduce, rank == 0 ? 1 : 0));
    }
    const CommunicationProblem problem = ranks.problem();
    CHECK(problem.rule == Rule::kDeadlock);
    CHECK(problem.rank == 0);
    CHECK(problem.other_rank == 1);
  }
  SECTION("both wait for a send before they receive") {
    Ranks ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.run(rank, call(Kind::kSend, 0, 1 - rank));
      ranks.run(rank, call(Kind::kRecv, 0, 1 - rank));
    }
    CHECK(ranks.problem().rule == Rule::kDeadlock);
  }
  SECTION("as a group they do not") {
    Ranks ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      const int64_t both =
          ranks.start(rank, {call(Kind::kSend, 0, 1 - rank), call(Kind::kRecv, 0, 1 - rank)});
      ranks.wait(rank, both);
    }
    CHECK(ranks.problems().empty());
  }
  SECTION("a receive that is posted before a collective of the same communicator") {
    Ranks ranks(2);
    const int64_t receive = ranks.start(0, {call(Kind::kRecv, 0, 1)});
    ranks.run(0, call(Kind::kAllReduce));
    ranks.wait(0, receive);
    ranks.run(1, call(Kind::kAllReduce));
    ranks.run(1, call(Kind::kSend, 0, 0));
    CHECK(ranks.problem().rule == Rule::kDeadlock);
  }
  SECTION("before a collective of another one it goes on") {
    Ranks ranks(2);
    const int64_t receive = ranks.start(0, {call(Kind::kRecv, 0, 1)});
    ranks.run(0, call(Kind::kAllReduce, 1));
    ranks.wait(0, receive);
    ranks.run(1, call(Kind::kAllReduce, 1));
    ranks.run(1, call(Kind::kSend, 0, 0));
    CHECK(ranks.problems().empty());
  }
}
