// SPDX-License-Identifier: MIT
#pragma once
// The page of runs that still write.
#include <chrono>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "lib/report/run.h"

namespace tessera::report {

// Writes report.html into the directory ("": the folder of the first path) as often as a run has
// written more, and says where it is. Returns when every run has ended: the page then stays as it
// is. Until there is a run it waits for one. page: of runs, which loads itself again after so
// many seconds (0: not).
int watch(const std::vector<std::string>& paths, const std::string& directory, std::ostream& out,
          const std::function<std::string(std::vector<Run>, int reload_s)>& page);

}  // namespace tessera::report
