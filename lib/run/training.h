// SPDX-License-Identifier: MIT
#pragma once
// What a run does inside Trainer::fit(): evaluations, checkpoints, reports and signals.
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
  // parts: built, with their checkpoints open.
  Training(const RunContext& run, RunParts& parts, RunReport& report);

  // To the last step. Returns whether Ctrl-C ended it before, all being written; throws
  // Error(kPreempted) where another signal did. Collective.
  bool run();
  std::string how_it_stopped(const char* by) const;

 private:
  FitOptions fit_options();
  std::vector<MicroBatch> next_batches();
  void end_steps();  // until the next batches
  // With --check_communication.
  void expect_operations_of(const std::vector<MicroBatch>& micro_batches);
  void check_operations();
  void between_steps();
  bool asked_to_stop();  // by a signal to any rank; collective
  BatchSource begin_evaluation();
  void end_evaluation(const EvalReport& report);
  bool is_best() const;  // the latest evaluation
  void save();
  void note_best();
  bool stop();  // for a signal, after the save

  const RunContext& run_;
  const TrainOptions& options_;
  RunParts& parts_;
  RunReport& report_;
  StopAgreement agreement_;
  bool in_steps_ = false;                    // not between them
  bool stopping_ = false;                    // all ranks know of a signal to one of them
  std::unique_ptr<StepSource> validation_;   // during an evaluation
  std::optional<RunState::Best> evaluated_;  // the latest, with its step
  int64_t steps_here_ = 0;                   // issued by this process
};

}  // namespace tessera::programs
