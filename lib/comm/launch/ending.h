// SPDX-License-Identifier: MIT
#pragma once
// How the ranks of a job ended, and what is said of it.
#include <exception>
#include <string>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {

// Of one rank; as a status of Bootstrap::conclude a list {code, message}, empty when it ended well.
struct Ending {
  int code = 0;
  std::string kind;
  std::string message;

  std::string pack() const;
  static Ending unpack(const std::string& status);
  bool is_answer() const;              // false: what stands for a rank that said nothing
  std::string reason(int rank) const;  // what the other ranks are told
};

Ending ending_of(ErrorCode code, const std::string& message);
// error: null for one of unknown type.
Ending ending_of(const std::exception* error);
Ending current_exception_ending();  // called in a handler only

// The exit code of the root cause: errors of peers count only when there is no other.
int root_cause(const std::vector<Ending>& endings);
// One line per distinct message, root causes first. A rank that ended because of another one's
// error is counted there.
void log_endings(const std::vector<Ending>& endings);
// For torchrun, whose summary names the cause that its workers leave in this file (the format is
// torch.distributed.elastic's).
void leave_for_agent(const Ending& ending);

}  // namespace tessera
