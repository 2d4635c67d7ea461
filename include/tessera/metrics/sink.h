// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Sinks of events. Each is used by one thread at a time (Recorder ensures it).
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

/// Consumer of a run's events, in order.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Writes an event. Throws Error(kDataLoss) with the path if a file cannot be written.
  virtual void write(const Event& event) = 0;
  /// Called for steps that are not reported, e.g. to update a progress bar.
  virtual void pass_over(const Event& /*step*/) {}
};

/// Options of the console.
struct ConsoleOptions {
  bool terminal = false;  ///< redraw a progress bar below the lines, which are cut to the window
  bool colours = false;   ///< ANSI colours
  /// Steps per line; 0: about 20 lines a run, and at least one every 5 minutes.
  int64_t every = 1;
  /// Rows below the run's name at the start: title and text.
  std::vector<std::pair<std::string, std::string>> found = {};
};
/// Console output on a stream that the caller keeps open: the start, lines of steps, evaluations
/// and anomalies, and the end. A terminal also gets a progress bar with rate, time left, loss and
/// memory.
std::unique_ptr<Sink> make_console_sink(std::FILE* stream, const ConsoleOptions& options);
/// The console sink with default options.
std::unique_ptr<Sink> make_console_sink(std::FILE* stream, bool terminal);
/// Start of a progress bar: "[####......]  40 %", with `cells` characters between the brackets.
std::string bar_text(double share, int cells = 30);
/// ConsoleOptions::every that 0 stands for, with so many steps left.
int64_t steps_a_line(int64_t steps_left);

/// metrics.jsonl: every event. The file sinks need an existing directory, append to earlier runs'
/// files and flush every line. They throw Error(kDataLoss) with the path if a file cannot be opened
/// or written.
std::unique_ptr<Sink> make_jsonl_sink(const std::string& path);
/// results.csv: one row per run, at run_end. settings: names of the settings in its records.
std::unique_ptr<Sink> make_results_sink(const std::string& path,
                                        const std::vector<std::string>& settings = {});
/// resources.csv: one row per resource event.
std::unique_ptr<Sink> make_resources_sink(const std::string& path);

/// TensorBoard: scalars of steps (train/...) and evaluations (eval/...) in a new event file of the
/// directory, which it creates.
std::unique_ptr<Sink> make_tensorboard_sink(const std::string& directory);

}  // namespace tessera::metrics
