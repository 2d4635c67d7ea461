// SPDX-License-Identifier: MIT
#pragma once
// What a finished run left in its output directory, and what several runs of one row have in
// common.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

struct RunResult {
  std::string directory;
  std::vector<double> losses, grad_norms;    // one a step
  std::map<std::string, std::string> texts;  // of run_start
  // Of run_start and run_end, with the last evaluation's and two of the steps': medians of
  // comm_bytes (per step, sent by rank 0) and tokens (per step, padding included, all ranks).
  std::map<std::string, double> numbers;

  std::string text(const std::string& key) const;  // "" when the run does not say
  std::optional<double> number(const std::string& key) const;
  int64_t integer(const std::string& key) const;  // 0 when the run does not say
};

// Reads metrics.jsonl. Throws Error(kDataLoss) when the run has not written its end.
RunResult read_run(const std::string& directory);

struct Spread {
  double median = 0, min = 0;
  std::optional<double> std;  // of the sample; one run has none
};

// Of the runs that know the number; nothing when none does.
std::optional<Spread> spread(const std::vector<RunResult>& runs, const std::string& key);

}  // namespace tessera::programs
