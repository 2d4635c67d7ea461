// SPDX-License-Identifier: MIT
#pragma once
// Runs the rows of a comparison in child processes and reports the results.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/compare/child.h"
#include "lib/compare/comparison_table.h"
#include "lib/compare/inputs.h"
#include "lib/compare/launchers.h"
#include "lib/compare/row.h"
#include "lib/compare/rows.h"
#include "lib/run/progress_bar.h"

namespace tessera::programs {

struct CompareOptions {
  std::string task = "squad", strategies = "ddp,zero1,zero2,zero3,fsdp", rank_counts = "2,4", rows;
  std::string deepspeed, peer, python = "python3", launcher = "auto", output_dir, baseline,
                               scaling = "strong";
  int64_t global_batch_size = 0, repeat = 1, largest_batch = 0;
  double tolerance = 0;
  bool reference = true, overwrite_output_dir = false;
};

class Comparison {
 public:
  // Checks every row, data and model included, before running or writing anything. defect: name of
  // a row whose learning rate is made 1 % too high, to show that verdicts can fail; usually "".
  Comparison(const CompareOptions& options, RowSource source, std::string defect);

  int run();  // returns the exit code

 private:
  void check_options() const;
  void check_output_directory() const;
  void prepare_rows();
  void prepare_launcher();
  void run_row(ComparisonRow& row, int64_t repeat);
  void find_largest_batch(ComparisonRow& row);
  bool take_smaller_batch(ComparisonRow& row);
  // result: file that a reused run's folder must contain; "": none.
  ChildResult run_child(const ComparisonRow& row, const std::string& name,
                        std::vector<std::string> flags, const std::string& result = kMetrics);
  ChildResult run_peer(const ComparisonRow& row, const std::string& name);
  ChildResult watch(Children::Request request);
  void take(ComparisonRow& row, const ChildResult& child, const std::string& name);
  void judge(ComparisonRow& row);
  void say(const std::string& line);
  void write_files();
  void write_report() const;
  int conclude();
  ComparisonView view() const;
  const ComparisonRow& baseline() const;

  static constexpr const char* kMetrics = "metrics.jsonl";  // of a measured run

  const CompareOptions& options_;
  RowSource source_;
  RunInputs inputs_;
  std::string defect_;
  std::map<std::string, std::string> environment_;
  LaunchersHere launchers_;
  std::string launcher_;  // mpirun, srun, threads or torchrun
  std::vector<ComparisonRow> rows_;
  std::unique_ptr<Children> children_;
  ProgressBar bar_{"rows"};
  int64_t done_ = 0, taken_over_ = 0;
};

}  // namespace tessera::programs
