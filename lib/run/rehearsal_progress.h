// SPDX-License-Identifier: MIT
#pragma once
// Metrics written by the rehearsal's runs so far.
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
  std::optional<Json> saved;  // record of the first checkpoint

  int64_t last() const { return steps.empty() ? 0 : steps.rbegin()->first; }
  // True if the steps are those of a run resumed at `step`. Before it has written its start they
  // are the previous run's.
  bool has_gone_on_from(int64_t step) const {
    return !steps.empty() && steps.begin()->first > step;
  }
};

// Reads the part of metrics.jsonl after the last run_start, without an incomplete line. Empty if
// the file is missing.
RehearsalProgress rehearsal_progress(const std::string& output_dir);

}  // namespace tessera::programs
