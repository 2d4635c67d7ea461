// SPDX-License-Identifier: MIT
#pragma once
// Identifies processes that were launched together where no launcher tells.
#include <string>

namespace tessera {

// Hashes; an empty one is unknown.
struct LaunchGroup {
  std::string host;
  std::string start;  // hash of session, working directory and command line

  bool operator==(const LaunchGroup&) const = default;
  // Same host but launched separately, so perhaps of another job.
  bool other_launch(const LaunchGroup& other) const {
    return !start.empty() && !other.start.empty() && host == other.host && start != other.start;
  }
};

// The hashes for this process. host: a text unique to this host.
LaunchGroup launch_group_of_process(const std::string& host);

}  // namespace tessera
