// SPDX-License-Identifier: MIT
#pragma once
// What a set of runs comes to, in a few sentences.
#include <optional>
#include <string>
#include <vector>

#include "lib/report/tables.h"

namespace tessera::report {

struct Finding {
  std::string title, text;  // "Fastest", "zero2-4: 12,345 tokens/s ..."
};

// The parts of a step that metrics.jsonl has, in the order of a step.
struct Phase {
  const char *key, *title;
  int color;  // in plots
};
inline constexpr Phase kPhases[] = {{"data_time_s", "data", 4},
                                    {"forward_s", "forward", 0},
                                    {"backward_s", "backward", 5},
                                    {"comm_exposed_s", "waiting for communication", 1},
                                    {"optimizer_s", "optimizer", 2}};

// Of several runs: the fastest, the least memory, whether their numbers are equal, and which did
// not finish. Only those that did the baseline's work compete. Of one run: how it stands.
std::vector<Finding> verdict(const Study& study);

// Which of these curves cannot be told apart, each set with the largest relative difference in it:
// "zero1-4 and zero2-4 lie on each other (largest relative difference 2.1e-07)."; "" for none.
struct NamedCurve {
  std::string name;
  std::vector<double> x, y;
};
std::string identical_curves(const std::vector<NamedCurve>& curves);

}  // namespace tessera::report
