// SPDX-License-Identifier: MIT
#pragma once
// Checks a rank's operations against those that a dry run recorded.
#include <cstddef>
#include <optional>
#include <string>

#include "tessera/comm/communication_ledger.h"

namespace tessera {

// [Note: what data decide]
// A dry run knows one rank's micro-batches but no values. An operation marked kCount may have other
// element counts than expected. One marked kWhether may be missing on either side, such as the
// header for a new shape between stages. Consecutive ones with one name are all present or all
// missing.
class ExpectedOperations {
 public:
  // what: prefix of messages, such as "step 1".
  ExpectedOperations(CommunicationLedger expected, std::string what);

  // Checks the operation that the rank calls. Throws Error(kInternal) with both unless it is the
  // next expected one.
  void next(const LedgerOperation& actual, const LedgerCommunicator& on);
  // Throws Error(kInternal) with the first expected operation that was not called.
  void require_all();

  size_t count() const { return called_; }  // calls so far

 private:
  const LedgerCommunicator& of(const LedgerOperation& expected) const;
  bool skip_undecided();  // skips the next expected operation if it is optional
  [[noreturn]] void differs(const std::string& what) const;

  const CommunicationLedger expected_;
  const std::string what_;
  size_t next_ = 0;
  size_t called_ = 0;
  // Name of the last kWhether operation that was called.
  std::optional<std::string> called_undecided_;
};

}  // namespace tessera
