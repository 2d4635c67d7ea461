// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Recorder: turns a run's records into events for its sinks, and into its summary.
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/metrics/event.h"
#include "tessera/metrics/resource_summary.h"
#include "tessera/metrics/sink.h"

namespace tessera::metrics {

/// Final data of a run that only the program has.
struct RunEndInfo {
  int exit_code = 0;                                 ///< exit code of the program
  std::optional<std::string> param_hash_final = {};  ///< hash of the final parameters
  /// Peak bytes of the rank's device.
  std::optional<int64_t> gpu_mem_allocated_peak_bytes = {}, gpu_mem_reserved_peak_bytes = {};
  std::optional<int64_t> pinned_peak_bytes = {};  ///< highest of all nodes
  Fields extra = {};                              ///< appended unchanged
};

/// Recorder of a run, on the rank that reports; thread-safe. After start() a sink's write error
/// (Error(kDataLoss)) does not end the run: it is logged once, lost records are counted, and
/// finish() logs their number.
class Recorder {
 public:
  /// Writes every logging_steps-th step and the first; 0: every step. The summary counts all steps.
  Recorder(std::vector<std::unique_ptr<Sink>> sinks, int64_t logging_steps = 1, int64_t rank = 0);
  ~Recorder();

  void start(const RunStartRecord& record);  ///< writes run_start
  void data(const DataRecord& record);       ///< writes data
  /// Writes step, preceded by an anomaly for a non-finite loss or a loss spike.
  void step(const StepRecord& record);
  void eval(const EvalRecord& record);              ///< writes eval
  void checkpoint(const CheckpointRecord& record);  ///< writes checkpoint
  /// Writes resource, and adds the sample to the summary.
  void resource(const ResourceRecord& record);
  /// Adds another node's samples to the summary.
  void other_node(const ResourceSummary& node);
  void anomaly(const AnomalyRecord& record);  ///< writes anomaly
  /// Ends the summary's runtime, which excludes e.g. exporting the model.
  void end_of_training();
  /// Writes run_end with the run's statistics; the last call, made once.
  void finish(const RunEndInfo& info);

 private:
  struct Totals;
  void emit(Event event);
  void lose(size_t sink, const std::string& reason);
  Event summary(const RunEndInfo& info) const;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Sink>> sinks_;
  std::string run_id_;
  int64_t logging_steps_, rank_;
  std::unique_ptr<Totals> totals_;
};

}  // namespace tessera::metrics
