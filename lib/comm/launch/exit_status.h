// SPDX-License-Identifier: MIT
#pragma once
// Exit status of a job's ranks, and how it is logged.
#include <exception>
#include <string>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {

// Exit status of one rank. As a status of Bootstrap::conclude: a list {code, message}, empty after
// success.
struct ExitStatus {
  int code = 0;
  std::string kind;
  std::string message;

  std::string pack() const;
  static ExitStatus unpack(const std::string& status);
  bool is_answer() const;              // false: stands for a rank that sent nothing
  std::string reason(int rank) const;  // text for the other ranks
};

ExitStatus exit_status_of(ErrorCode code, const std::string& message);
// error: null for an exception of unknown type.
ExitStatus exit_status_of(const std::exception* error);
ExitStatus current_exception_status();  // call inside a catch clause only

// Exit code of the root cause: errors caused by peers count only when there is no other.
int root_cause(const std::vector<ExitStatus>& endings);
struct ExitStatusLine {
  LogLevel level;
  std::string text;
};
// One line per distinct message, root causes first. Ranks that ended because of another rank's
// error are counted on its line.
std::vector<ExitStatusLine> exit_status_lines(const std::vector<ExitStatus>& endings);
void log_exit_statuses(const std::vector<ExitStatus>& endings);
// Writes torchelastic's error file, from which torchrun's summary takes the cause
// (torch.distributed.elastic's format).
void write_torchelastic_error(const ExitStatus& ending);

}  // namespace tessera
