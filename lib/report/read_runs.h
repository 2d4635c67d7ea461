// SPDX-License-Identifier: MIT
#pragma once
// Finds and reads runs: output directories of the programs, folders of tessera-compare, output of
// bench_strategies.
#include <string>
#include <vector>

#include "lib/report/run.h"

namespace tessera::report {

// A path is an output directory, its metrics.jsonl, a folder that holds such directories at any
// depth (tessera-compare's among them), Google Benchmark's JSON, or a log with lines "TESSERA
// {...}" of bench_strategies. In the order of the paths, and of names within a folder. Throws
// Error(kDataLoss) naming file and line for what cannot be read, and for a path without any run.
std::vector<Run> read_runs(const std::vector<std::string>& paths);

// metrics.jsonl of an output directory. A run that went on from a checkpoint in the same directory
// is one run; a torn last line is left out.
Run read_run(const std::string& directory);

// Rows of compare.json, else of comparison.csv, beside the folders of their runs: adds what the
// comparison found to the runs below the folder, and rows that left no run (out of memory) as runs
// of their own.
void read_comparison(const std::string& folder, std::vector<Run>& runs);

// Google Benchmark's JSON, or a log of bench_strategies.
std::vector<Run> read_benchmark(const std::string& path);

}  // namespace tessera::report
