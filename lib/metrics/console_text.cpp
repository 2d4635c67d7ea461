// SPDX-License-Identifier: MIT
#include "lib/metrics/console_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "lib/core/integer_of.h"
#include "lib/core/number_text.h"
#include "lib/core/printable.h"
#include "lib/core/terminal.h"
#include "lib/core/units.h"
#include "lib/metrics/field_table.h"
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
  if (e.number("cp") > 1) axes += concat(" x context ", or_zero(e, "cp"));
  if (e.number("expert_parallel") > 1) {
    axes += concat(", experts on ", or_zero(e, "expert_parallel"));
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

std::string kind_text(const MetricField& field, double value) {
  switch (field.kind) {
    case MetricField::kSeconds:
      return seconds_text(value);
    case MetricField::kPerSecond:
      return count_text(value);
    case MetricField::kBytes:
      return mebibytes_text(value);
    case MetricField::kRatio:
      return formatted("%.1f %%", value * 100);
    default:
      return formatted("%g", value);
  }
}

// The field on the console; nothing where it is unknown and then left out.
std::optional<std::string> text_of(const MetricField& field, const MetricField::ConsoleText& shown,
                                   std::optional<double> value) {
  if (!value && shown.unknown == nullptr) return std::nullopt;
  const std::string text = !value ? shown.unknown
                           : shown.pattern != nullptr
                               ? formatted(shown.pattern, *value * field.shown_scale())
                               : kind_text(field, *value);
  return concat(shown.before, text, shown.after);
}

// The field over the steps since the last line: a mean for times and rates, else the last step's.
std::optional<double> value_over(const StepSums& sums, const MetricField& field,
                                 const Event& step) {
  const std::string name = field.name;
  if (name == "step_time_s") return sums.time_s / std::max(1.0, sums.steps);
  if (name != "tokens_per_second") return step.number(name);
  return sums.time_s > 0 ? std::optional(sums.tokens / sums.time_s) : std::nullopt;
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
  std::vector<TextPart> parts{{padded(name, name_width), kAlways}};
  for (const MetricField* field : console_fields(EventKind::kStep)) {
    const auto& shown = field->more.console;
    const auto text = text_of(*field, shown, value_over(sums, *field, e));
    if (text) parts.push_back({padded(*text, static_cast<size_t>(shown.width)), shown.weight});
  }
  if (const Value* skipped = e.find("skipped"); skipped && *skipped == Value(true)) {
    parts.push_back(
        {e.number("loss_scale") ? "skipped (overflow)" : "skipped (not finite)", kAlways});
  }
  return fitted(std::move(parts), width);
}

std::string eval_line(const Event& e) {
  std::string text = formatted("eval at step %.0f", e.number("step").value_or(0));
  for (const MetricField* field : console_fields(EventKind::kEval)) {
    if (const auto value = text_of(*field, field->more.console, e.number(field->name))) {
      text += "  " + *value;
    }
  }
  return text;
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
  std::vector<TextRow> rows;
  for (const MetricField* field : summary_fields()) {
    const auto& shown = field->more.summary;
    const Event& event = field->event == EventKind::kEval ? last_eval : e;
    const auto text = text_of(*field, shown, event.number(field->name));
    if (!text) continue;
    if (rows.empty() || rows.back().title != shown.row) rows.push_back({shown.row, ""});
    std::string& row = rows.back().text;
    row += row.empty() || text->starts_with(' ') ? *text : ", " + *text;
  }
  return rows;
}

}  // namespace tessera::metrics
