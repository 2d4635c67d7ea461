// SPDX-License-Identifier: MIT
#pragma once
// Report page of running runs.
#include <chrono>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "lib/report/run.h"

namespace tessera::report {

// Writes report.html into the directory ("": the first path's folder) whenever a run has written
// more, and prints its path. Waits for the first run; returns when every run has ended. page: makes
// the page, which reloads itself every reload_s seconds (0: never).
int watch(const std::vector<std::string>& paths, const std::string& directory, std::ostream& out,
          const std::function<std::string(std::vector<Run>, int reload_s)>& page);

}  // namespace tessera::report
