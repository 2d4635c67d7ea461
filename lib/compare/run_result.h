// SPDX-License-Identifier: MIT
#pragma once
// Results of a finished run from its output directory, and statistics over a row's runs.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

struct RunResult {
  std::string directory;
  std::vector<double> losses, grad_norms;    // by step
  std::map<std::string, std::string> texts;  // of run_start
  // From run_start, run_end and the last evaluation, and two medians over steps: comm_bytes (per
  // step, sent by rank 0) and tokens (per step, padding included, all ranks).
  std::map<std::string, double> numbers;

  std::string text(const std::string& key) const;  // "" if missing
  std::optional<double> number(const std::string& key) const;
  int64_t integer(const std::string& key) const;  // 0 if missing
};

// Reads metrics.jsonl. Throws Error(kDataLoss) if the run has not written its end.
RunResult read_run(const std::string& directory);

struct Spread {
  double median = 0, min = 0;
  std::optional<double> std;  // sample deviation; empty for one run
};

// Over the runs that have the number; empty if none has.
std::optional<Spread> spread(const std::vector<RunResult>& runs, const std::string& key);

}  // namespace tessera::programs
