// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where events go. Sinks are used by one thread at a time (Recorder sees to it).
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

/// Takes the events of one run in order.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Throws Error(kDataLoss) with the path where a file cannot be written.
  virtual void write(const Event& event) = 0;
  /// A step that is not reported: what draws how far a run has come may use it.
  virtual void pass_over(const Event& /*step*/) {}
};

/// What a console shows, and how.
struct ConsoleOptions {
  bool terminal = false;  ///< a bar is redrawn below the lines, which fit the window
  bool colours = false;   ///< ANSI colours
  /// One line every so many steps; 0: about 20 lines a run, and one every 5 minutes at least.
  int64_t every = 1;
  /// Rows below the run's name at the start: title and text.
  std::vector<std::pair<std::string, std::string>> found = {};
};
/// On a stream that the caller keeps open: what was found, lines of steps, evaluations and
/// anomalies, and how it ended. On a terminal a bar with rate, time left, loss and memory is
/// redrawn below the lines; a pipe gets lines only.
std::unique_ptr<Sink> make_console_sink(std::FILE* stream, const ConsoleOptions& options);
/// The same with no other option.
std::unique_ptr<Sink> make_console_sink(std::FILE* stream, bool terminal);
/// "[####......]  40 %", as such a bar begins; `cells` between the brackets.
std::string bar_text(double share, int cells = 30);
/// Of a run with so many steps left, as ConsoleOptions::every: 0 says.
int64_t steps_a_line(int64_t steps_left);

/// The files of an output directory, which must exist. Every line is flushed when written. Appends
/// to files of earlier runs; throws Error(kDataLoss) with the path when a file cannot be opened or
/// written.
std::unique_ptr<Sink> make_jsonl_sink(const std::string& path);  ///< metrics.jsonl: every event
/// results.csv: one row a run, at run_end; settings: the names that its records have.
std::unique_ptr<Sink> make_results_sink(const std::string& path,
                                        const std::vector<std::string>& settings = {});
/// resources.csv: one row a resource event
std::unique_ptr<Sink> make_resources_sink(const std::string& path);

/// Scalars of steps (train/...) and evaluations (eval/...) in an event file of its own in the
/// directory, which is made.
std::unique_ptr<Sink> make_tensorboard_sink(const std::string& directory);

}  // namespace tessera::metrics
