// SPDX-License-Identifier: MIT
#pragma once
// Finds and reads runs: output directories of programs, folders of tessera-compare, output of
// bench_strategies.
#include <string>
#include <vector>

#include "lib/report/run.h"

namespace tessera::report {

// path: an output directory, its metrics.jsonl, a folder with such directories at any depth
// (tessera-compare's too), Google Benchmark's JSON, or a log with bench_strategies' "TESSERA {...}"
// lines. Ordered by path, then by name within a folder. Throws Error(kDataLoss) with file and line
// for unreadable content, and for a path without runs.
std::vector<Run> read_runs(const std::vector<std::string>& paths);

// Reads metrics.jsonl of an output directory. A run resumed in the same directory is one run; an
// incomplete last line is ignored.
Run read_run(const std::string& directory);

// Reads compare.json, else comparison.csv, beside the runs' folders. Adds its findings to the runs
// below the folder, and rows without runs (out of memory) as runs of their own.
void read_comparison(const std::string& folder, std::vector<Run>& runs);

// Reads Google Benchmark's JSON, or a log of bench_strategies.
std::vector<Run> read_benchmark(const std::string& path);

}  // namespace tessera::report
