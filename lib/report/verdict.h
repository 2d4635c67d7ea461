// SPDX-License-Identifier: MIT
#pragma once
// Summary of a set of runs in a few sentences.
#include <optional>
#include <string>
#include <vector>

#include "lib/report/tables.h"

namespace tessera::report {

struct VerdictLine {
  std::string title, text;  // "Fastest", "zero2-4: 12,345 tokens/s ..."
};

// Phases of a step in metrics.jsonl, in time order.
struct Phase {
  const char *key, *title;
  int color;  // in plots
};
inline constexpr Phase kPhases[] = {{"data_time_s", "data", 4},
                                    {"forward_s", "forward", 0},
                                    {"backward_s", "backward", 5},
                                    {"comm_exposed_s", "waiting for communication", 1},
                                    {"optimizer_s", "optimizer", 2}};

// Several runs: the fastest, the least memory, whether their numbers agree, and which did not
// finish. Only runs with the baseline's work compete. One run: its state.
std::vector<VerdictLine> verdict(const Study& study);

// Which of these curves cannot be told apart, each set with the largest relative difference in it:
// "zero1-4 and zero2-4 lie on each other (largest relative difference 2.1e-07)."; "" for none.
struct NamedCurve {
  std::string name;
  std::vector<double> x, y;
};
std::string identical_curves(const std::vector<NamedCurve>& curves);

}  // namespace tessera::report
