// SPDX-License-Identifier: MIT
#pragma once
// Weights & Biases and MLflow: child processes with their Python packages forward metrics.jsonl.
#include <memory>
#include <string>
#include <vector>

#include "lib/run/child_process.h"
#include "lib/settings/options.h"

namespace tessera::programs {

// Text of scripts/send_metrics.py for python3 -c, so that programs need not know its path.
extern const char* const kSendMetrics;

// For the process that writes metrics.jsonl, after run_start is written. Failures do not end a run;
// each gives one log line.
class MetricsSenders {
 public:
  // Starts a process per service that --report_to names and whose Python package is installed.
  explicit MetricsSenders(const OutputOptions& options);
  // Waits for unsent metrics, for a limited time.
  ~MetricsSenders();
  // Does not wait: the senders finish and end after this process.
  void leave();

 private:
  struct Sender {
    std::string service, log;
    std::unique_ptr<ChildProcess> process;
  };
  std::string output_dir_;
  std::vector<Sender> senders_;
};

}  // namespace tessera::programs
