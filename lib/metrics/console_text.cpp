// SPDX-License-Identifier: MIT
#include "lib/metrics/console_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lib/core/integer_of.h"
#include "lib/core/number_text.h"
#include "lib/core/printable.h"
#include "lib/core/terminal.h"
#include "lib/core/units.h"
#include "tessera/core/error.h"

namespace tessera::metrics {
namespace {

constexpr int kAlways = 100;  // weight of parts that are always shown

std::string or_zero(const Event& event, const char* key) {
  return concat(integer_of(event.number(key).value_or(0)));
}

std::string parameters_text(const Event& e) {
  const double all = e.number("num_parameters").value_or(0);
  const double trained = e.number("num_trainable_parameters").value_or(all);
  const std::string text = concat(e.text("model"), ", ", count_text(all), " parameters");
  if (trained >= all) return text;
  return concat(text, ", trainable ", count_text(trained), " of them (",
                formatted("%.3g %%)", trained / all * 100));
}

std::string dtypes_text(const Event& e) {
  const std::string parameter = e.text("parameter_dtype");
  std::string text = parameter;
  for (const auto& [key, what] : {std::pair{"gradient_dtype", "gradients "},
                                  {"reduce_dtype", "collectives "},
                                  {"master_dtype", "master weights "},
                                  {"moment_dtype", "moments "}}) {
    const std::string dtype = e.text(key);
    if (!dtype.empty() && dtype != parameter) text += concat(", ", what, dtype);
  }
  return text;
}

std::string layout_text(const Event& e) {
  if (e.number("world_size") == 1) return e.text("strategy") + " on 1 rank";
  std::string axes;
  for (const auto& [key, what] :
       {std::pair{"pp", "pipeline "}, {"dp", "data "}, {"tp", "tensor "}}) {
    axes += concat(axes.empty() ? "" : " x ", what, or_zero(e, key));
  }
  return concat(e.text("strategy"), " on ", or_zero(e, "world_size"), " ranks: ", axes);
}

std::string device_text(const Event& e) {
  const std::string launcher = e.text("launcher");
  std::string text = e.text("device");
  if (launcher == "threads") return text + ", ranks are threads";
  if (launcher != "none" || e.number("world_size") != 1) text += ", " + e.text("transport");
  if (launcher != "none") text += ", launched by " + launcher;
  return text;
}

}  // namespace

std::string formatted(const char* pattern, double number) {
  return printed(pattern, std::isnan(number) ? std::abs(number) : number);
}

std::string seconds_text(double seconds) {
  if (seconds < 1) return formatted("%.0f ms", seconds * 1e3);
  return formatted("%.2f s", seconds);
}

std::string rows_text(const std::vector<TextRow>& rows, size_t width, bool colours) {
  constexpr size_t kTitleWidth = 12;  // with surrounding spaces
  std::string all;
  for (const auto& [title, text] : rows) {
    const std::string left = padded(concat("  ", title, " "), kTitleWidth);
    all += colours ? concat("\033[2m", left, "\033[0m") : left;
    const std::string shown = printable(text);
    all += (width > 0 ? wrapped(shown, kTitleWidth, kTitleWidth, width) : shown) + "\n";
  }
  return all;
}

std::string clock_text(double seconds) {
  const int64_t total = integer_of(std::round(std::max(0.0, seconds)));
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%lld:%02lld:%02lld", static_cast<long long>(total / 3600),
                static_cast<long long>(total / 60 % 60), static_cast<long long>(total % 60));
  return buffer;
}

std::string count_text(double number) {
  if (number >= 1e9) return formatted("%.2fB", number / 1e9);
  if (number >= 1e6) return formatted("%.2fM", number / 1e6);
  if (number >= 1e4) return formatted("%.1fk", number / 1e3);
  return formatted("%.0f", number);
}

std::string mebibytes_text(double bytes) { return formatted("%.0f MiB", bytes / kMiB); }

std::string fitted(std::vector<TextPart> parts, size_t width) {
  while (true) {
    std::string text;
    for (const TextPart& part : parts) text += (text.empty() ? "" : "  ") + part.text;
    // Trailing spaces count too, so that every line drops the same parts.
    const bool fits = width == 0 || text.size() <= width || parts.size() <= 1;
    text.erase(text.find_last_not_of(' ') + 1);
    if (fits) return text;
    const auto least = std::ranges::min_element(parts, {}, &TextPart::weight);
    if (least->weight >= kAlways) return text.substr(0, width);
    parts.erase(least);
  }
}

std::string step_line(const Event& e, double total_steps, const StepSums& sums, size_t width) {
  const double step = e.number("step").value_or(0);
  std::string name = formatted("step %.0f", step);
  size_t name_width = 0;
  if (total_steps > 0) {
    const std::string of_all = formatted("/%.0f", total_steps);
    name += of_all;
    name_width = 4 + 2 * of_all.size();
  }
  std::vector<TextPart> parts{
      {padded(name, name_width), kAlways},
      {padded(formatted("loss %.5f", e.number("loss").value_or(NAN)), 13), kAlways},
      {formatted("lr %.2e", e.number("learning_rate").value_or(NAN)), 2}};
  if (auto norm = e.number("grad_norm")) {
    parts.push_back({padded(formatted("grad_norm %.4g", *norm), 16), 4});
  }
  parts.push_back({padded(seconds_text(sums.time_s / std::max(1.0, sums.steps)), 7), 5});
  if (sums.time_s > 0) {
    parts.push_back({padded(count_text(sums.tokens / sums.time_s) + " tokens/s", 14), 6});
  }
  if (auto mfu = e.number("mfu_ratio")) {
    parts.push_back({formatted("MFU %4.1f %%", *mfu * 100), 1});
  }
  if (auto memory = e.number("gpu_mem_allocated_bytes")) {
    parts.push_back({mebibytes_text(*memory), 3});
  }
  if (const Value* skipped = e.find("skipped"); skipped && *skipped == Value(true)) {
    parts.push_back(
        {e.number("loss_scale") ? "skipped (overflow)" : "skipped (not finite)", kAlways});
  }
  return fitted(std::move(parts), width);
}

std::string eval_line(const Event& e) {
  std::string text = formatted("eval at step %.0f", e.number("step").value_or(0)) +
                     formatted("  loss %.5f", e.number("eval_loss").value_or(NAN));
  if (auto perplexity = e.number("eval_perplexity")) {
    text += formatted("  perplexity %.3f", *perplexity);
  }
  if (auto accuracy = e.number("eval_accuracy")) {
    text += formatted("  accuracy %.1f %%", *accuracy * 100);
  }
  if (auto macro = e.number("eval_f1_macro")) text += formatted("  macro F1 %.3f", *macro);
  if (auto exact = e.number("eval_exact_match")) {
    text += formatted("  exact match %.1f %%", *exact);
  }
  if (auto f1 = e.number("eval_f1")) text += formatted("  F1 %.1f", *f1);
  return text + "  " + seconds_text(e.number("eval_runtime").value_or(0));
}

std::vector<TextRow> found_rows(const Event& e) {
  std::vector<TextRow> rows{{"model", parameters_text(e)},
                            {"layout", layout_text(e)},
                            {"device", device_text(e)},
                            {"dtype", dtypes_text(e)}};
  std::string data = e.text("dataset");
  if (!data.empty()) data += ": ";
  rows.push_back({"data", concat(data, or_zero(e, "num_train_samples"), " rows")});
  rows.push_back({"steps", concat("global batch ", or_zero(e, "global_batch_size"), ", ",
                                  or_zero(e, "num_train_steps"), " steps")});
  std::erase_if(rows, [](const TextRow& row) { return row.text.empty(); });
  return rows;
}

std::string end_line(const Event& e) {
  const auto code = integer_of(e.number("exit_code").value_or(0));
  const double steps = e.number("train_steps").value_or(0);
  std::string text = code == 0 ? "done" : concat("ended with exit code ", code);
  if (steps == 0) return text + ": no step was trained";
  return text + formatted(code == 0 ? ": %.0f steps in " : " after %.0f steps in ", steps) +
         seconds_text(e.number("train_runtime").value_or(0));
}

std::vector<TextRow> end_rows(const Event& e, const Event& last_eval) {
  if (e.number("train_steps").value_or(0) == 0) return {};
  std::string loss = formatted("train %.5f", e.number("train_loss").value_or(NAN)) +
                     formatted(" (last %.5f)", e.number("train_loss_final").value_or(NAN));
  if (auto eval = last_eval.number("eval_loss")) loss += formatted(", eval %.5f", *eval);
  if (auto accuracy = last_eval.number("eval_accuracy")) {
    loss += formatted(", accuracy %.1f %%", *accuracy * 100);
  }
  std::string speed =
      formatted("%.2f samples/s, ", e.number("train_samples_per_second").value_or(0)) +
      count_text(e.number("train_tokens_per_second").value_or(0)) + " tokens/s";
  if (auto step = e.number("step_time_median_s")) {
    speed += concat(", ", seconds_text(*step), " a step (median)");
  }
  if (auto mfu = e.number("mfu_ratio")) speed += formatted(", MFU %.1f %%", *mfu * 100);
  std::string memory;
  if (auto gpu = e.number("gpu_mem_allocated_peak_bytes")) {
    memory = concat("peak ", mebibytes_text(*gpu), " allocated on a GPU");
  }
  if (auto host = e.number("cpu_rss_tree_peak_bytes")) {
    memory += concat(memory.empty() ? "" : ", ", "peak ", mebibytes_text(*host), " on the host");
  }
  std::vector<TextRow> rows{{"loss", loss}, {"speed", speed}, {"memory", memory}};
  std::erase_if(rows, [](const TextRow& row) { return row.text.empty(); });
  return rows;
}

}  // namespace tessera::metrics
