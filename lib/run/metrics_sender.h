// SPDX-License-Identifier: MIT
#pragma once
// Weights & Biases and MLflow: their Python packages send metrics.jsonl beside a run.
#include <memory>
#include <string>
#include <vector>

#include "lib/run/child_process.h"
#include "lib/settings/options.h"

namespace tessera::programs {

// The text of scripts/send_metrics.py, which python3 -c runs: programs need not know where it lies.
extern const char* const kSendMetrics;

// Of the process that writes metrics.jsonl, once it holds run_start. Nothing that goes wrong here
// ends a run: it is said in one sentence.
class MetricsSenders {
 public:
  // Starts a process for each service that --report_to names and Python has the package of.
  explicit MetricsSenders(const OutputOptions& options);
  // Waits a while for what is still to be sent.
  ~MetricsSenders();
  // Waits for nothing: when this process ends they send what there is, and end.
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
