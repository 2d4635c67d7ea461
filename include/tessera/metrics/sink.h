// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where events go. Sinks are used by one thread at a time (Recorder sees to it).
#include <cstdio>
#include <memory>
#include <string>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

/// Takes the events of one run in order.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Throws Error(kDataLoss) with the path where a file cannot be written.
  virtual void write(const Event& event) = 0;
};

/// One line per step, evaluation and anomaly on a stream that the caller keeps open. On a terminal
/// a progress bar with the time left is redrawn below the lines; a pipe gets lines only.
std::unique_ptr<Sink> make_console_sink(std::FILE* stream, bool terminal);
/// "[####......]  40 %", as such a bar begins.
std::string bar_text(double share);

/// The files of an output directory, which must exist. Every line is flushed when written. Appends
/// to files of earlier runs; throws Error(kDataLoss) with the path when a file cannot be opened or
/// written.
std::unique_ptr<Sink> make_jsonl_sink(const std::string& path);  ///< metrics.jsonl: every event
/// results.csv: one row a run, at run_end; settings: the names that its records have.
std::unique_ptr<Sink> make_results_sink(
    const std::string& path,
    const std::vector<std::string>& settings = {});  ///< results.csv: one row a run, at run_end
std::unique_ptr<Sink> make_resources_sink(
    const std::string& path);  ///< resources.csv: one row a resource event

/// Scalars of steps (train/...) and evaluations (eval/...) in an event file of its own in the
/// directory, which is made.
std::unique_ptr<Sink> make_tensorboard_sink(const std::string& directory);

}  // namespace tessera::metrics
