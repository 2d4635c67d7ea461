// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/core/error.h"
#include "tessera/metrics/sink.h"

namespace tessera::metrics {
namespace {

// A NaN has no sign.
std::string format(const char* pattern, double number) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), pattern, std::isnan(number) ? std::abs(number) : number);
  return buffer;
}

std::string seconds_text(double seconds) {
  if (seconds < 1) return format("%.0f ms", seconds * 1e3);
  return format("%.2f s", seconds);
}

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%lld:%02lld:%02lld", static_cast<long long>(total / 3600),
                static_cast<long long>(total / 60 % 60), static_cast<long long>(total % 60));
  return buffer;
}

std::string count_text(double number) {
  if (number >= 1e6) return format("%.2fM", number / 1e6);
  if (number >= 1e4) return format("%.1fk", number / 1e3);
  return format("%.0f", number);
}

class ConsoleSink final : public Sink {
 public:
  ConsoleSink(std::FILE* stream, bool terminal) : stream_(stream), terminal_(terminal) {}

  void write(const Event& event) override {
    if (event.name == "run_start") {
      total_steps_ = event.number("num_train_steps").value_or(0);
      line(run_start_line(event));
    } else if (event.name == "step") {
      step_ = event.number("step").value_or(0);
      time_sum_ += event.number("step_time_s").value_or(0);
      ++steps_seen_;
      line(step_line(event));
    } else if (event.name == "eval") {
      line(eval_line(event));
    } else if (event.name == "anomaly") {
      line("warning: " + event.text("kind") + ": " + event.text("detail"));
    } else if (event.name == "checkpoint") {
      const bool resumed = !event.text("restored_from").empty();
      line((resumed ? "resumed from " : "checkpoint ") + event.text("path"));
    } else if (event.name == "run_end") {
      step_ = 0;  // no bar below the last line
      line(run_end_line(event));
    }
  }

 private:
  void line(const std::string& text) {
    if (terminal_) std::fputs("\r\033[K", stream_);
    std::fprintf(stream_, "%s\n", text.c_str());
    if (terminal_ && step_ > 0 && total_steps_ > 0) draw_bar();
    std::fflush(stream_);
  }

  void draw_bar() {
    const double left = (total_steps_ - step_) * time_sum_ / std::max(1.0, steps_seen_);
    std::fprintf(stream_, "%s  %s left", bar_text(step_ / total_steps_).c_str(),
                 clock_text(left).c_str());
  }

  // Where not all parameters are trained.
  static std::string trained_text(const Event& e) {
    const double all = e.number("num_parameters").value_or(0);
    const double trained = e.number("num_trainable_parameters").value_or(all);
    if (trained >= all) return "";
    return concat("trainable ", count_text(trained), " of them (",
                  format("%.3g %%), ", trained / all * 100));
  }

  std::string run_start_line(const Event& e) const {
    return concat(e.text("exp"), ": ", e.text("model"), ", ",
                  count_text(e.number("num_parameters").value_or(0)), " parameters, ",
                  trained_text(e), e.text("strategy"), " on ", e.number("world_size").value_or(1),
                  " rank(s) (", e.text("device"), ", ", e.text("transport"), ", launched by ",
                  e.text("launcher"), "), global batch ", e.number("global_batch_size").value_or(0),
                  ", ", total_steps_, " steps");
  }

  std::string step_line(const Event& e) const {
    std::string text = format("step %.0f", step_);
    if (total_steps_ > 0) text += format("/%.0f", total_steps_);
    text += format("  loss %.5f", e.number("loss").value_or(NAN));
    text += format("  lr %.3g", e.number("learning_rate").value_or(NAN));
    if (auto norm = e.number("grad_norm")) text += format("  grad_norm %.4g", *norm);
    text += "  " + seconds_text(e.number("step_time_s").value_or(0));
    if (auto rate = e.number("tokens_per_second")) text += "  " + count_text(*rate) + " tokens/s";
    if (auto mfu = e.number("mfu_ratio")) text += format("  MFU %.1f %%", *mfu * 100);
    if (auto memory = e.number("gpu_mem_allocated_bytes")) {
      text += format("  %.0f MiB", *memory / 1048576);
    }
    if (const Value* skipped = e.find("skipped"); skipped && *skipped == Value(true)) {
      text += e.number("loss_scale") ? "  skipped (overflow)" : "  skipped (not finite)";
    }
    return text;
  }

  static std::string eval_line(const Event& e) {
    std::string text = format("eval at step %.0f", e.number("step").value_or(0)) +
                       format("  loss %.5f", e.number("eval_loss").value_or(NAN));
    if (auto perplexity = e.number("eval_perplexity"))
      text += format("  perplexity %.3f", *perplexity);
    if (auto accuracy = e.number("eval_accuracy"))
      text += format("  accuracy %.1f %%", *accuracy * 100);
    if (auto macro = e.number("eval_f1_macro")) text += format("  macro F1 %.3f", *macro);
    if (auto exact = e.number("eval_exact_match")) text += format("  exact match %.1f %%", *exact);
    if (auto f1 = e.number("eval_f1")) text += format("  F1 %.1f", *f1);
    return text + "  " + seconds_text(e.number("eval_runtime").value_or(0));
  }

  static std::string run_end_line(const Event& e) {
    const auto code = static_cast<int64_t>(e.number("exit_code").value_or(0));
    const double steps = e.number("train_steps").value_or(0);
    std::string text = code == 0 ? "done" : concat("ended with exit code ", code);
    if (steps == 0) return text + ": no step was trained";
    if (code != 0) text += format(" after %.0f steps", steps);
    return text + format(": train loss %.5f", e.number("train_loss").value_or(NAN)) +
           format(" (last %.5f)", e.number("train_loss_final").value_or(NAN)) + ", " +
           seconds_text(e.number("train_runtime").value_or(0)) + ", " +
           format("%.2f samples/s, ", e.number("train_samples_per_second").value_or(0)) +
           count_text(e.number("train_tokens_per_second").value_or(0)) + " tokens/s";
  }

  std::FILE* stream_;
  bool terminal_;
  double total_steps_ = 0, step_ = 0, time_sum_ = 0, steps_seen_ = 0;
};

}  // namespace

std::string bar_text(double share) {
  constexpr int kWidth = 30;
  const double done = std::clamp(share, 0.0, 1.0);
  const auto filled = static_cast<size_t>(done * kWidth);
  return concat("[", std::string(filled, '#'), std::string(kWidth - filled, '.'),
                format("] %3.0f %%", done * 100));
}

std::unique_ptr<Sink> make_console_sink(std::FILE* stream, bool terminal) {
  return std::make_unique<ConsoleSink>(stream, terminal);
}

}  // namespace tessera::metrics
