// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Turns what happens in a run into events for its sinks, and into the run's summary.
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

/// What only the program knows at the end of a run.
struct RunEndInfo {
  int exit_code = 0;                                 ///< exit code of the program
  std::optional<std::string> param_hash_final = {};  ///< hash of the final parameters
  /// Peak bytes of the rank's device.
  std::optional<int64_t> gpu_mem_allocated_peak_bytes = {}, gpu_mem_reserved_peak_bytes = {};
  std::optional<int64_t> pinned_peak_bytes = {};  ///< of the node that has most
  Fields extra = {};                              ///< appended as they are
};

/// One per run on the rank that reports. Methods may be called from any thread. After start() a
/// sink that cannot write (Error(kDataLoss)) ends nothing: that is logged once, the records that it
/// loses are counted, and finish() logs their number.
class Recorder {
 public:
  /// Only every logging_steps-th step (and the first) is written, of 0 every one; the summary counts
  /// all of them.
  Recorder(std::vector<std::unique_ptr<Sink>> sinks, int64_t logging_steps = 1, int64_t rank = 0);
  ~Recorder();

  void start(const RunStartRecord& record);  ///< writes run_start
  void data(const DataRecord& record);       ///< writes data
  /// Notes a loss that is not finite, and one that jumps, as anomalies before it.
  void step(const StepRecord& record);
  void eval(const EvalRecord& record);              ///< writes eval
  void checkpoint(const CheckpointRecord& record);  ///< writes checkpoint
  void resource(const ResourceRecord& record);      ///< writes resource, and counts the sample
  /// What was sampled on a node beside this one; counts in the summary.
  void other_node(const ResourceSummary& node);
  void anomaly(const AnomalyRecord& record);  ///< writes anomaly
  /// The summary's runtime ends here, not at finish(): exporting a model is no training.
  void end_of_training();
  /// Writes run_end with the statistics of the run; once, and nothing follows it.
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
