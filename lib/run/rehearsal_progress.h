// SPDX-License-Identifier: MIT
#pragma once
// What the runs of a rehearsal have written so far.
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tessera/core/json.h"

namespace tessera::programs {

struct RehearsalProgress {
  struct Step {
    double loss = 0, time_s = 0;
  };
  std::map<int64_t, Step> steps;
  std::optional<Json> saved;  // the first checkpoint

  int64_t last() const { return steps.empty() ? 0 : steps.rbegin()->first; }
  // Whether these are steps of a run that went on behind this one. Until that has written its start
  // they are those of the run before.
  bool has_gone_on_from(int64_t step) const {
    return !steps.empty() && steps.begin()->first > step;
  }
};

// Of metrics.jsonl there, the part behind the last start of a run, without a line that is still
// being written. Nothing without the file.
RehearsalProgress rehearsal_progress(const std::string& output_dir);

}  // namespace tessera::programs
