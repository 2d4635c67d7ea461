// SPDX-License-Identifier: MIT
#include "lib/comm/expected_operations.h"

#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

bool same_call(const LedgerOperation& actual, const LedgerOperation& expected) {
  const bool counts = expected.decided != DecidedByData::kCount;
  return actual.kind == expected.kind && actual.reduce == expected.reduce &&
         actual.peer == expected.peer && actual.dtype == expected.dtype &&
         actual.name == expected.name && (!counts || actual.numel == expected.numel) &&
         actual.output_counts.size() == expected.output_counts.size();
}

bool same_ranks(const LedgerCommunicator& actual, const LedgerCommunicator& expected) {
  return actual.name == expected.name && actual.ranks == expected.ranks;
}

}  // namespace

ExpectedOperations::ExpectedOperations(CommunicationLedger expected, std::string what)
    : expected_(std::move(expected)), what_(std::move(what)) {}

const LedgerCommunicator& ExpectedOperations::of(const LedgerOperation& expected) const {
  return expected_.communicators[expected.communicator];
}

bool ExpectedOperations::skip_undecided() {
  if (next_ == expected_.operations.size()) return false;
  const LedgerOperation& expected = expected_.operations[next_];
  if (expected.decided != DecidedByData::kWhether || expected.name == called_undecided_) {
    return false;
  }
  ++next_;
  return true;
}

void ExpectedOperations::next(const LedgerOperation& actual, const LedgerCommunicator& on) {
  const auto is_next = [&] {
    if (next_ == expected_.operations.size()) return false;
    const LedgerOperation& expected = expected_.operations[next_];
    return same_call(actual, expected) && same_ranks(on, of(expected));
  };
  const size_t before = next_;
  const bool undecided = actual.decided == DecidedByData::kWhether;
  while (!is_next()) {
    if (skip_undecided()) continue;
    if (!undecided || actual.name == called_undecided_) {
      differs(concat("calls ", text_of(actual), ", over ", text_of(on)));
    }
    next_ = before;
    ++called_;
    return;
  }
  if (undecided) called_undecided_ = actual.name;
  ++next_;
  ++called_;
}

void ExpectedOperations::require_all() {
  while (skip_undecided()) {
  }
  if (next_ < expected_.operations.size()) differs("has ended");
}

void ExpectedOperations::differs(const std::string& what) const {
  const bool more = next_ < expected_.operations.size();
  const int rank = expected_.communicators.front().rank;
  fail(ErrorCode::kInternal, "communication check: ", what_, " on rank ", rank, " ", what,
       " as operation ", called_ + 1, ", where the dry run of the step ",
       more ? concat("has ", text_of(expected_.operations[next_]), ", over ",
                     text_of(of(expected_.operations[next_])))
            : concat("ends after ", called_),
       ". Ranks that disagree wait for each other for ever, so the run ends here. Please report it "
       "with the run's flags");
}

}  // namespace tessera
