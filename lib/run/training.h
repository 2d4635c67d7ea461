// SPDX-License-Identifier: MIT
#pragma once
// The steps of a run, with evaluations and checkpoints between them.
#include <cstdint>
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
  void train_until(int64_t step);
  // With --check_communication.
  void expect_operations_of(const std::vector<MicroBatch>& micro_batches);
  void check_operations();
  bool between_steps();  // whether to go on
  void evaluate();
  bool is_best() const;  // the latest evaluation
  void save();
  void note_best();
  bool stop();  // for a signal, after the save

  const RunContext& run_;
  const TrainOptions& options_;
  RunParts& parts_;
  RunReport& report_;
  StopAgreement agreement_;
  bool stopping_ = false;                    // all ranks know of a signal to one of them
  std::optional<RunState::Best> evaluated_;  // the latest, with its step
  int64_t steps_here_ = 0;                   // issued by this process
};

}  // namespace tessera::programs
