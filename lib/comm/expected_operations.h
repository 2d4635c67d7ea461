// SPDX-License-Identifier: MIT
#pragma once
// What a rank is to call, beside what it calls.
#include <cstddef>
#include <optional>
#include <string>

#include "tessera/comm/communication_ledger.h"

namespace tessera {

// [Note: what data decide]
// A dry run knows one rank's micro-batches and no values. An operation that is marked kCount may
// have other counts than expected. Those marked kWhether, as the headers between stages that meet a
// new shape, may be missing on either side; of those with one name all or none.
class ExpectedOperations {
 public:
  // what: "step 1", for messages.
  ExpectedOperations(CommunicationLedger expected, std::string what);

  // The rank calls this. Throws Error(kInternal) with both unless it is the next one.
  void next(const LedgerOperation& actual, const LedgerCommunicator& on);
  // The rank has called all. Throws Error(kInternal) with the first that is missing.
  void require_all();

  size_t count() const { return called_; }  // of calls so far

 private:
  const LedgerCommunicator& of(const LedgerOperation& expected) const;
  bool skip_undecided();  // the next expected one, if it need not be
  [[noreturn]] void differs(const std::string& what) const;

  const CommunicationLedger expected_;
  const std::string what_;
  size_t next_ = 0;
  size_t called_ = 0;
  std::optional<std::string> called_undecided_;  // the name of the latest of kWhether
};

}  // namespace tessera
