// SPDX-License-Identifier: MIT
#pragma once
// Training loop of a run, with evaluations and checkpoints.
#include <cstdint>
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
  void train_until(int64_t step);
  // With --check_communication.
  void expect_operations_of(const std::vector<MicroBatch>& micro_batches);
  void check_operations();
  bool between_steps();  // false: stop
  void evaluate();
  bool is_best() const;  // true if the latest evaluation is the best
  void save();
  void note_best();
  bool stop();  // after a signal and its save

  const RunContext& run_;
  const TrainOptions& options_;
  RunParts& parts_;
  RunReport& report_;
  StopAgreement agreement_;
  bool stopping_ = false;                    // all ranks know of a signal to one of them
  std::optional<RunState::Best> evaluated_;  // the latest, with its step
  int64_t steps_here_ = 0;                   // steps issued by this process
};

}  // namespace tessera::programs
