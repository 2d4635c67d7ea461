// SPDX-License-Identifier: MIT
#pragma once
// Metrics of a run, from the first step to the summary or the error.
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/metrics/expert_load.h"
#include "lib/metrics/watches.h"
#include "lib/run/metrics_sender.h"
#include "lib/run/node_resources.h"
#include "lib/run/rank_times.h"
#include "lib/run/run_memory.h"
#include "lib/run/run_parts.h"
#include "tessera/metrics/recorder.h"

namespace tessera::programs {

// One per rank: rank 0 writes what all ranks measure. parts: after build().
class RunReport {
 public:
  RunReport(const RunContext& run, const RunParts& parts);

  // Prepares --output_dir and opens its files. Collective.
  void open();
  RunMemory& memory() { return memory_; }
  void step_begins(const std::vector<MicroBatch>& micro_batches);
  // On GPUs reports arrive one step late: the next step may have begun.
  void step(const StepReport& report);
  void between_steps(const StepReport& latest);
  void steps_end();
  void evaluation(const metrics::EvalRecord& record);
  void checkpoints(const std::vector<SavedCheckpoint>& saved);
  void end_of_training();
  // hash: over all parameters. Collective.
  void finish(int exit_code, const std::optional<std::string>& hash);
  // Must not call collectives.
  void fail(const std::exception& error);

 private:
  struct Issued {
    int64_t sent_before = 0;  // bytes
    double row_length = 0;    // see mean_row_length()
  };
  metrics::StepRecord record_of(const StepReport& report, const Issued& issued) const;
  void tell_work(const StepReport& step);
  // work_s: seconds by rank; may be empty.
  void write(metrics::StepRecord record, const std::vector<double>& work_s);
  void note_straggler(const std::vector<double>& work_s, int64_t step);

  const RunContext& run_;
  const RunParts& parts_;
  const double peak_flops_;                      // FLOP/s of one device; 0: unknown
  std::unique_ptr<metrics::Recorder> recorder_;  // rank 0 only
  std::unique_ptr<MetricsSenders> senders_;      // rank 0 only
  std::optional<NodeResources> resources_;
  RunMemory memory_;
  std::optional<RankTimes> rank_times_;      // with several ranks only
  std::optional<metrics::StepRecord> held_;  // waits for the ranks' work times
  metrics::StragglerWatch straggler_watch_;
  metrics::StarvingWatch starving_watch_;
  std::deque<Issued> issued_;  // steps not reported yet
};

}  // namespace tessera::programs
