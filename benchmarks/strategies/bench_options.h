// SPDX-License-Identifier: MIT
#pragma once
// Command line of bench_strategies: the programs' flags, two of which take lists.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/settings/options.h"

namespace tessera::bench {

struct Options {
  Options();

  TrainOptions run;  // for every row, except strategy and micro-batch
  std::string strategies = "single", micro_batches = "4";
  std::string rows = "fixed", supervise = "all";
  int64_t warmup = 3;
  bool sync = true, profile = false;
  std::string help;  // not empty if requested

  TrainOptions of(const std::string& strategy) const;
  // Distinguishes a row beside strategy, mesh and batch: "1f1b gc rows-packed".
  std::string variant() const;
};

// Throws Error(kInvalidArgument) for unknown or invalid arguments.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace tessera::bench
