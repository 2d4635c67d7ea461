// SPDX-License-Identifier: MIT
#pragma once
// Command line of bench_strategies: the programs' flags, of which two take lists.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/settings/options.h"

namespace tessera::bench {

struct Options {
  Options();

  TrainOptions run;  // of every row, but for strategy and micro-batch
  std::string strategies = "single", micro_batches = "4";
  std::string rows = "fixed", supervise = "all";
  int64_t warmup = 3;
  bool sync = true, profile = false;
  std::string help;  // asked for, and not empty then

  TrainOptions of(const std::string& strategy) const;
  // What sets a row apart besides strategy, mesh and batch: "1f1b gc rows-packed".
  std::string variant() const;
};

// Throws Error(kInvalidArgument) for what it does not know or cannot be.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace tessera::bench
