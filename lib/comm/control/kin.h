// SPDX-License-Identifier: MIT
#pragma once
// Which processes were started together, where no launcher says it.
#include <string>

namespace tessera {

// Hashes; empty ones say nothing.
struct Kin {
  std::string host;
  std::string start;  // session, working directory and command line

  bool operator==(const Kin&) const = default;
  // Of one host, and started apart: perhaps of another job.
  bool strange_to(const Kin& other) const {
    return !start.empty() && !other.start.empty() && host == other.host && start != other.start;
  }
};

// Of this process. host: a text that only processes of this host have.
Kin kin_of_process(const std::string& host);

}  // namespace tessera
