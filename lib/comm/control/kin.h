// SPDX-License-Identifier: MIT
#pragma once
// Identifies processes that were launched together where no launcher tells.
#include <string>

namespace tessera {

// Hashes; an empty one is unknown.
struct Kin {
  std::string host;
  std::string start;  // hash of session, working directory and command line

  bool operator==(const Kin&) const = default;
  // Same host but launched separately, so perhaps of another job.
  bool strange_to(const Kin& other) const {
    return !start.empty() && !other.start.empty() && host == other.host && start != other.start;
  }
};

// The hashes for this process. host: a text unique to this host.
Kin kin_of_process(const std::string& host);

}  // namespace tessera
