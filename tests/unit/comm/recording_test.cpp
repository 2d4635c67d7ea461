// SPDX-License-Identifier: MIT
// Recording of a rank's operations, and comparison with expected ones.
#include "lib/comm/expected_operations.h"
#include "lib/comm/operation_scope.h"
#include "tessera/comm/communication_ledger.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using test::require;
using Ledger = std::shared_ptr<CommunicationLedger>;
using Operations = std::vector<LedgerOperation>;

std::string name_text(const LedgerCommunicator& of) {
  std::string text = concat(of.name, " place ", of.rank, " of");
  for (const int rank : of.ranks) text += concat(" ", rank);
  return text;
}

void require_text(const std::string& actual, const std::string& expected) {
  require(actual == expected, "\"", actual, "\" instead of \"", expected, "\"");
}

LedgerOperation called(OperationKind kind, int64_t numel, const std::string& name,
                       DecidedByData decided = DecidedByData::kNothing) {
  return {.kind = kind,
          .numel = numel,
          .dtype = at::kFloat,
          .decided = decided,
          .phase = "forward",
          .name = name};
}

CommunicationLedger ledger_of(const Operations& operations) {
  return {.communicators = {{.name = "world", .ranks = {0, 1}, .rank = 1}},
          .operations = operations};
}

// Calls all of `actual` where `expected` is expected; returns the error, or "".
std::string difference(const Operations& actual, const Operations& expected) {
  const CommunicationLedger ledger = ledger_of(expected);
  ExpectedOperations check(ledger, "step 1");
  try {
    for (const LedgerOperation& each : actual) check.next(each, ledger.communicators[0]);
    check.require_all();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
    return error.what();
  }
  CHECK(check.count() == actual.size());
  return "";
}

TEST_CASE("both ways of splitting give recorded communicators with the same names and ranks") {
  test::run_ranks(6, [](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(world.split(0, world.rank()), ledger);
    // Even and odd ranks, in reverse order.
    const auto by = recorded->split_by([](int rank) {
      return Communicator::SplitArguments{rank % 2, -rank};
    });
    const auto asked = recorded->split(world.rank() % 2, -world.rank());
    const auto inner = by->split_by([](int rank) { return Communicator::SplitArguments{rank, 0}; });
    const int odd = world.rank() % 2, place = 2 - world.rank() / 2;
    const std::string members = concat(" place ", place, " of ", 4 + odd, " ", 2 + odd, " ", odd);
    require(ledger->communicators.size() == 4, ledger->communicators.size());
    require_text(name_text(ledger->communicators[0]),
                 concat("world place ", world.rank(), " of 0 1 2 3 4 5"));
    require_text(name_text(ledger->communicators[1]), concat("world.0c", odd, members));
    require_text(name_text(ledger->communicators[2]), concat("world.1c", odd, members));
    require_text(name_text(ledger->communicators[3]),
                 concat("world.0c", odd, ".0c", place, " place 0 of ", world.rank()));
    require(ledger->operations.empty(), "splits are no operations of the rank");
    const at::Tensor sum = at::full({1}, world.rank(), at::kLong);
    by->all_reduce(sum).wait();
    require(sum.item<int64_t>() == 6 + 3 * odd, sum.item<int64_t>());
    require(by->rank() == place && by->size() == 3, by->rank());
  });
}

TEST_CASE("the ledger has operations, groups, purposes and the places where they are waited for") {
  test::run_ranks(2, [](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(world.split(0, world.rank()), ledger);
    const int peer = 1 - world.rank();
    const at::Tensor x = at::ones({3}), y = at::empty({6}), z = at::empty({3});
    const InPhase phase("forward");
    Work sum, group;
    {
      const ForTensor of("h.0");
      sum = recorded->all_reduce(x, ReduceOp::kMax);
    }
    {
      const DataDecides the(DecidedByData::kCount);
      Group both(*recorded);
      recorded->send(at::zeros({3}), peer);
      recorded->recv(z, peer);
      group = both.end();
    }
    recorded->barrier();
    sum.wait();
    recorded->all_gather(y, x).wait();
    group.wait();
    recorded->broadcast(x, 1);  // never waited for

    const Operations& all = ledger->operations;
    require(all.size() == 6, all.size(), " operations");
    require_text(text_of(all[0]), "all_reduce of 3 Float, max, for h.0, in forward");
    require_text(text_of(all[1]), concat("send of 3 Float, to place ", peer, ", in forward"));
    require_text(text_of(all[2]), concat("recv of 3 Float, from place ", peer, ", in forward"));
    require_text(text_of(all[3]), "barrier");
    require_text(text_of(all[4]), "all_gather of 3 Float, in forward");
    require_text(text_of(all[5]), "broadcast of 3 Float, root 1, in forward");
    const int64_t starts[] = {0, 1, 1, 2, 3, 4};
    for (size_t i = 0; i < all.size(); ++i) {
      require(all[i].start == starts[i], "start of ", i, " is ", all[i].start);
      const bool grouped = i == 1 || i == 2;
      require((all[i].decided == DecidedByData::kCount) == grouped, "decided of ", i);
    }
    require(ledger->waited == std::vector<int64_t>{4, 5, 4, 5, CommunicationLedger::kNotWaited},
            "places of waits");
  });
}

TEST_CASE("one rank's operations and those of a paused ledger are not written down") {
  test::run_ranks(1, [](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(world.split(0, 0), ledger);
    recorded->all_reduce(at::ones({1})).wait();
    require(ledger->operations.empty(), "of one rank");
  });
  test::run_ranks(2, [](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(world.split(0, world.rank()), ledger);
    ledger->paused = true;
    recorded->all_reduce(at::ones({1})).wait();
    require(ledger->operations.empty(), "paused");
    ledger->paused = false;
    recorded->all_reduce(at::ones({1})).wait();
    require(ledger->operations.size() == 1, ledger->operations.size());
  });
}

TEST_CASE("who is asked before an operation starts can refuse it") {
  test::run_ranks(2, [](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(
        world.split(0, world.rank()), ledger, [](const LedgerOperation& operation) {
          check(operation.numel < 4, ErrorCode::kInternal, "refused: ", text_of(operation));
        });
    recorded->all_reduce(at::ones({3})).wait();
    const std::string error = test::require_error(
        ErrorCode::kInternal, [&] { recorded->all_reduce(at::ones({4})); }, "a refused operation");
    require(error == "refused: all_reduce of 4 Float, sum, in start", error);
    recorded->all_reduce(at::ones({2})).wait();  // no rank waits for the rejected one
    require(ledger->operations.size() == 2, ledger->operations.size());
  });
}

TEST_CASE("an operation that differs is named beside the one that was expected") {
  using Kind = OperationKind;
  const LedgerOperation sum = called(Kind::kAllReduce, 8, "h.0"),
                        gather = called(Kind::kAllGather, 8, "h.1"),
                        whole = called(Kind::kBroadcast, 4, "m", DecidedByData::kWhether),
                        rows = called(Kind::kAllGather, 6, "table", DecidedByData::kCount),
                        header = called(Kind::kSend, 17, "x", DecidedByData::kWhether);
  const auto with = [](LedgerOperation operation, auto member, auto value) {
    operation.*member = value;
    return operation;
  };
  using O = LedgerOperation;
  CHECK(difference({sum, gather}, {sum, gather}) == "");
  CHECK_THAT(difference({sum, sum}, {sum, gather}),
             test::contains("communication check: step 1 on rank 1 calls all_reduce of 8 Float, "
                            "sum, for h.0, in forward, over all ranks (ranks 0, 1) as operation 2, "
                            "where the dry run of the step has all_gather of 8 Float, for h.1, in "
                            "forward, over all ranks (ranks 0, 1). "));
  CHECK_THAT(difference({sum}, {sum, gather}),
             test::contains("has ended as operation 2, where the dry run of the step has "
                            "all_gather of 8 Float, for h.1"));
  CHECK_THAT(difference({sum, gather, sum}, {sum, gather}), test::contains("ends after 2"));
  for (const O& other : {with(gather, &O::numel, 9), with(gather, &O::dtype, at::kHalf),
                         with(gather, &O::name, "h.2"), with(gather, &O::peer, 1),
                         with(gather, &O::kind, Kind::kReduceScatter)}) {
    CHECK(difference({sum, other}, {sum, gather}) != "");
  }
  CHECK(difference({with(sum, &O::reduce, ReduceOp::kMax)}, {sum}) != "");
  CHECK(difference({with(rows, &O::numel, 7)}, {rows}) == "");
  CHECK(difference({with(rows, &O::dtype, at::kHalf)}, {rows}) != "");
  // All or none of one name.
  CHECK(difference({sum, whole, whole, gather}, {sum, whole, whole, gather}) == "");
  CHECK(difference({sum, gather}, {sum, whole, whole, gather}) == "");
  CHECK(difference({sum, whole, gather}, {sum, whole, whole, gather}) != "");
  CHECK(difference({sum, whole, whole, gather}, {sum, whole, gather}) != "");
  CHECK(difference({sum}, {sum, whole}) == "");
  CHECK(difference({header, sum, header, gather}, {sum, gather}) == "");
}

TEST_CASE("an operation over other ranks is a difference") {
  const LedgerOperation sum = called(OperationKind::kAllReduce, 8, "h.0");
  const CommunicationLedger ledger{
      .communicators = {{.name = "world.1c0", .ranks = {0, 2}, .rank = 0}}, .operations = {sum}};
  ExpectedOperations check(ledger, "step 1");
  CHECK_THROWS_WITH(check.next(sum, {.name = "world.2c0.0c1", .ranks = {0, 1}, .rank = 0}),
                    test::contains("over a part of the tensor axis (ranks 0, 1)") &&
                        test::contains("over the data axis (ranks 0, 2)"));
  ExpectedOperations again(ledger, "step 1");
  CHECK_THROWS_WITH(again.next(sum, {.name = "world.4c0", .ranks = {0, 1}, .rank = 0}),
                    test::contains("over the data x context axis (ranks 0, 1)"));
}

}  // namespace
}  // namespace tessera
