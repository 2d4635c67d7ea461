// SPDX-License-Identifier: MIT
#pragma once
// A run as read by the report.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::report {

// Columns of equal length, named as in docs/schema/metrics.schema.json; NaN: unknown.
class Series {
 public:
  size_t size() const { return rows_; }
  bool empty() const { return rows_ == 0; }
  void append(const std::map<std::string, double>& row);
  // Drops rows from the first one with a value >= `from` in this column.
  void cut(const std::string& column, double from);
  // All NaN for an unknown column.
  std::vector<double> column(const std::string& name) const;
  // True if any row has a value.
  bool has(const std::string& name) const;
  // Mean of the known values; empty without any.
  std::optional<double> mean(const std::string& name) const;

 private:
  size_t rows_ = 0;
  std::map<std::string, std::vector<double>> columns_;
};

// How a run ended. kUnavailable: its launcher, framework or device is not there.
enum class RunOutcome { kFinished, kOutOfMemory, kFailed, kUnfinished, kUnavailable };
const char* outcome_name(RunOutcome outcome);

// Result of comparing a row of tessera-compare with its reference; ratios are the largest relative
// differences.
struct ParityCheck {
  std::string folder, reference, verdict, worst_parameter;
  std::optional<double> loss, grad_norm, parameters, tolerance;
  bool is_baseline = false;  // of the whole comparison
};

struct Run {
  std::string path, name;  // name: short, and unique in a report
  RunOutcome outcome = RunOutcome::kFinished;
  std::string problem;                          // why the run did not finish
  std::map<std::string, std::string> facts;     // of run_start
  std::map<std::string, std::string> settings;  // flags of the program by name
  std::map<std::string, double> numbers;        // of run_start, the last evaluation, run_end
  Series steps, evaluations, resources;
  std::vector<std::string> anomalies;  // "nan: the loss of step 7 is not finite"
  int times_resumed = 0;
  std::optional<ParityCheck> parity;

  std::optional<double> number(const std::string& key) const;
  // From facts, else settings, else "".
  std::string text(const std::string& key) const;
};

}  // namespace tessera::report
