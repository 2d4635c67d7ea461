// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <cmath>

#include "lib/core/integer_of.h"
#include "lib/core/printable.h"
#include "lib/core/terminal.h"
#include "lib/metrics/console_text.h"
#include "tessera/core/error.h"
#include "tessera/metrics/sink.h"

namespace tessera::metrics {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetweenBars = std::chrono::milliseconds(100);
constexpr auto kLongestSilence = std::chrono::minutes(5);
constexpr const char *kBold = "\033[1m", *kFaint = "\033[2m", *kGreen = "\033[32m",
                     *kYellow = "\033[33m", *kRed = "\033[31m", *kPlain = "\033[0m";

class ConsoleSink final : public Sink {
 public:
  ConsoleSink(std::FILE* stream, const ConsoleOptions& options)
      : stream_(stream), options_(options) {}

  void write(const Event& event) override {
    if (event.name == "run_start") {
      total_steps_ = event.number("num_train_steps").value_or(0);
      std::vector<TextRow> rows = found_rows(event);
      for (const auto& [title, text] : options_.found) rows.push_back({title, text});
      block(event.text("exp"), kBold, rows);
    } else if (event.name == "step") {
      step(event);
    } else if (event.name == "eval") {
      last_eval_ = event;
      line(eval_line(event), "");
    } else if (event.name == "anomaly") {
      line("warning: " + event.text("kind") + ": " + event.text("detail"), kYellow);
    } else if (event.name == "checkpoint") {
      const bool resumed = !event.text("restored_from").empty();
      line((resumed ? "resumed from " : "checkpoint ") + event.text("path"), kFaint);
    } else if (event.name == "resource") {
      host_bytes_ = event.number("cpu_rss_tree_bytes").value_or(host_bytes_);
    } else if (event.name == "run_end") {
      last_step_ = {};  // no progress bar below the last line
      const bool well = event.number("exit_code").value_or(0) == 0;
      block(end_line(event), well ? kGreen : kRed, end_rows(event, last_eval_));
    }
  }

  void pass_over(const Event& event) override {
    count(event);
    if (options_.terminal && Clock::now() - drawn_ >= kBetweenBars) redraw();
  }

 private:
  size_t width() const {
    return options_.terminal ? static_cast<size_t>(std::max(20, terminal_width(stream_))) - 1 : 0;
  }

  std::string coloured(const char* colour, const std::string& text) const {
    return options_.colours && *colour != '\0' ? concat(colour, text, kPlain) : text;
  }

  void count(const Event& event) {
    if (every_ == 0) {
      const double left = total_steps_ - event.number("step").value_or(0) + 1;
      every_ = options_.every > 0 ? options_.every : steps_a_line(integer_of(left));
    }
    last_step_ = event;
    for (StepSums* sums : {&of_line_, &of_run_}) {
      sums->time_s += event.number("step_time_s").value_or(0);
      sums->tokens += event.number("tokens").value_or(0);
      sums->steps += 1;
    }
  }

  void step(const Event& event) {
    count(event);
    const auto number = integer_of(event.number("step").value_or(0));
    const bool due = options_.every > 0 || number % every_ == 0 || of_run_.steps == 1 ||
                     static_cast<double>(number) == total_steps_ ||
                     Clock::now() - said_ >= kLongestSilence;
    if (!due) {
      if (options_.terminal && Clock::now() - drawn_ >= kBetweenBars) redraw();
      return;
    }
    said_ = Clock::now();
    line(step_line(event, total_steps_, of_line_, width()), "");
    of_line_ = {};
  }

  void wipe() {
    if (options_.terminal) std::fputs("\r\033[K", stream_);
  }

  void line(const std::string& text, const char* colour) {
    wipe();
    std::fprintf(stream_, "%s\n", coloured(colour, printable(text)).c_str());
    redraw();
    std::fflush(stream_);
  }

  void block(const std::string& head, const char* colour, const std::vector<TextRow>& rows) {
    wipe();
    std::fprintf(stream_, "%s\n", coloured(colour, printable(head)).c_str());
    std::fputs(rows_text(rows, width(), options_.colours).c_str(), stream_);
    std::fflush(stream_);
  }

  void redraw() {
    if (!options_.terminal || last_step_.name.empty() || total_steps_ <= 0) return;
    drawn_ = Clock::now();
    const double number = last_step_.number("step").value_or(0);
    const double a_step = of_run_.time_s / std::max(1.0, of_run_.steps);
    std::vector<TextPart> parts;
    const size_t columns = width();
    parts.push_back({bar_text(number / total_steps_, columns < 60    ? 10
                                                     : columns < 110 ? 20
                                                                     : 30),
                     6});
    parts.push_back({clock_text((total_steps_ - number) * a_step) + " left", 5});
    parts.push_back({formatted("loss %.4f", last_step_.number("loss").value_or(NAN)), 4});
    if (a_step > 0) {
      parts.push_back({count_text(of_run_.tokens / of_run_.time_s) + " tokens/s", 3});
    }
    const auto device = last_step_.number("gpu_mem_allocated_bytes");
    if (device || host_bytes_ > 0) {
      parts.push_back({mebibytes_text(device.value_or(host_bytes_)), 2});
    }
    parts.push_back({a_step < 1 ? formatted("%.1f steps/s", 1 / std::max(a_step, 1e-9))
                                : formatted("%.2f s a step", a_step),
                     1});
    std::fprintf(stream_, "\r\033[K%s", fitted(std::move(parts), columns).c_str());
    std::fflush(stream_);
  }

  std::FILE* stream_;
  const ConsoleOptions options_;
  int64_t every_ = 0;  // 0: no step so far
  double total_steps_ = 0, host_bytes_ = 0;
  Event last_step_, last_eval_;
  StepSums of_line_, of_run_;
  Clock::time_point said_ = Clock::now(), drawn_;
};

}  // namespace

std::string bar_text(double share, int cells) {
  const double done = std::clamp(share, 0.0, 1.0);
  const auto filled = static_cast<size_t>(done * cells);
  return concat("[", std::string(filled, '#'),
                std::string(static_cast<size_t>(cells) - filled, '.'),
                formatted("] %3.0f %%", done * 100));
}

int64_t steps_a_line(int64_t steps_left) {
  constexpr int64_t kMostLines = 25;
  for (int64_t unit = 1;; unit *= 10) {
    for (const int64_t every : {unit, 2 * unit, 5 * unit}) {
      if (steps_left <= every * kMostLines) return every;
    }
  }
}

std::unique_ptr<Sink> make_console_sink(std::FILE* stream, const ConsoleOptions& options) {
  return std::make_unique<ConsoleSink>(stream, options);
}

std::unique_ptr<Sink> make_console_sink(std::FILE* stream, bool terminal) {
  return make_console_sink(stream, ConsoleOptions{.terminal = terminal});
}

}  // namespace tessera::metrics
