// SPDX-License-Identifier: MIT
#pragma once
// Callbacks of a run for Trainer::fit(): evaluations, checkpoints, reports and signals.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/run/run_parts.h"
#include "lib/run/run_report.h"

namespace tessera::programs {

class Training {
 public:
  // parts: after build() and open_checkpoints().
  Training(const RunContext& run, RunParts& parts, RunReport& report);

  // Trains to the last step. Returns true if Ctrl-C ended it early, after everything is written.
  // Throws Error(kPreempted) for another signal. Collective.
  bool run();
  std::string how_it_stopped(const char* by) const;

 private:
  FitOptions fit_options();
  std::vector<MicroBatch> next_batches();
  void end_steps();
  // With --check_communication.
  void expect_operations_of(const std::vector<MicroBatch>& micro_batches);
  void check_operations();
  void between_steps();
  bool asked_to_stop();  // true after a signal to any rank; collective
  BatchSource begin_evaluation();
  void end_evaluation(const EvalReport& report);
  bool is_best() const;  // true if the latest evaluation is the best
  void save();
  void note_best();
  bool stop();  // after a signal and its save

  const RunContext& run_;
  const TrainOptions& options_;
  RunParts& parts_;
  RunReport& report_;
  StopAgreement agreement_;
  bool in_steps_ = false;                    // between begin and end of a series
  bool stopping_ = false;                    // all ranks know of a signal to one of them
  std::unique_ptr<StepSource> validation_;   // during an evaluation
  std::optional<RunState::Best> evaluated_;  // the latest, with its step
  int64_t steps_here_ = 0;                   // steps issued by this process
};

}  // namespace tessera::programs
