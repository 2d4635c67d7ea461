// SPDX-License-Identifier: MIT
#include "lib/compare/comparison_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "lib/core/number_text.h"
#include "lib/core/terminal.h"
#include "lib/metrics/table.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr double kMebibyte = 1048576;
constexpr const char* kVerdict = "verdict";

using metrics::Cell;

// A column of the table and what it shows of a row.
struct Column {
  metrics::Column head;
  std::function<Cell(const ComparisonRow&)> cell;
  bool always = true;  // false: shown only if rows differ
};
using TextOf = std::function<std::string(const ComparisonRow&)>;

Column text(const std::string& title, TextOf text_of, bool always = true) {
  return {{.title = title},
          [text_of = std::move(text_of)](const ComparisonRow& row) -> Cell {
            return {.text = text_of(row)};
          },
          always};
}

// A diverged run's "nan" is no unknown number.
Cell number_cell(const std::optional<double>& value) {
  if (value && !std::isfinite(*value)) return {.text = printed("%f", *value)};
  return {.number = value};
}

metrics::Column number(const std::string& title, int decimals, double scale = 1) {
  return {.title = title, .scale = scale, .decimals = decimals, .thousands = false};
}

Column median_of(const metrics::Column& head, const std::string& key) {
  return {head, [key](const ComparisonRow& row) { return number_cell(row.median(key)); }};
}

// "median +- standard deviation (min)" for several runs.
TextOf spread_of(const std::string& key, const char* pattern) {
  return [=](const ComparisonRow& row) -> std::string {
    const auto values = spread(row.runs, key);
    if (!values) return "-";
    std::string text = printed(pattern, values->median);
    if (values->std) {
      text += " +- " + printed(pattern, *values->std) + " (" + printed(pattern, values->min) + ")";
    }
    return text;
  };
}

// Measured and planned bytes, in MiB.
TextOf bytes_beside(const std::string& key, double StateMemory::*formula) {
  const metrics::Column mebibytes = number("", 3, 1 / kMebibyte);
  return [=](const ComparisonRow& row) -> std::string {
    if (!row.finished() || !row.peer.empty()) return "-";
    return cell_text(number_cell(row.median(key)), mebibytes, "-") +
           printed(" / %.3f", row.formula.*formula / kMebibyte);
  };
}

std::string mesh_text(const ComparisonRow& row) {
  const MeshExtents mesh = row.mesh();
  return concat(mesh.pipeline, "x", mesh.data, "x", mesh.tensor,
                mesh.context == 1 ? "" : concat(" context ", mesh.context),
                mesh.expert == 1 ? "" : concat(" expert ", mesh.expert));
}

std::string differences(const ComparisonRow& row) {
  if (!row.parity || !row.parity->mismatch.empty()) return "-";
  if (!row.peer.empty()) return printed("%.1e %.1e -", row.parity->loss, row.parity->grad_norm);
  return printed("%.1e %.1e %.1e", row.parity->loss, row.parity->grad_norm, row.parity->parameters);
}

std::string largest_text(const ComparisonRow& row) {
  if (!row.largest) return "-";
  const auto& [fits, beyond] = *row.largest;
  return beyond ? concat(fits, " (", *beyond, " does not fit)") : concat(">= ", fits);
}

std::string table_text(const std::vector<ComparisonRow>& rows, const std::vector<Column>& columns,
                       size_t width) {
  metrics::Table table{.rows = std::vector<std::vector<Cell>>(rows.size()), .unknown = "-"};
  for (const Column& column : columns) {
    std::vector<Cell> cells;
    std::set<std::string> texts;
    for (const ComparisonRow& row : rows) {
      cells.push_back(column.cell(row));
      texts.insert(cell_text(cells.back(), column.head, table.unknown));
    }
    if (texts.size() < 2 && !column.always) continue;
    table.columns.push_back(column.head);
    table.columns.back().is_text = table.columns.size() == 1 || column.head.title == kVerdict;
    for (size_t i = 0; i < rows.size(); ++i) table.rows[i].push_back(std::move(cells[i]));
  }
  return metrics::text_table(table, {.width = width});
}

}  // namespace

std::string comparison_text(const ComparisonView& view, size_t width) {
  const ComparisonRow& base = view.baseline;
  const auto of_work = [](const std::string& key) -> TextOf {
    return [=](const ComparisonRow& row) {
      const auto found = row.work.find(key);
      return found == row.work.end() ? "-" : found->second;
    };
  };
  const auto beside = [&](const std::string& title, auto* measure) -> Column {
    metrics::Column head = number(title, 1, 100);
    head.sign = true;
    return {head, [&base, measure](const ComparisonRow& row) -> Cell {
              if (&row == &base) return {.text = "baseline"};
              return number_cell(measure(row, base));
            }};
  };
  const bool scales = std::ranges::any_of(
      view.rows, [&](const ComparisonRow& row) { return row.ranks != base.ranks; });
  const bool searched = std::ranges::any_of(
      view.rows, [](const ComparisonRow& row) { return row.largest.has_value(); });
  const Column name = text("row", [](const ComparisonRow& row) { return row.name; });
  const std::string first = table_text(
      view.rows,
      {name,
       text("mesh", mesh_text),
       text(
           "model", [](const ComparisonRow& row) { return row.prepared->model.name; }, false),
       text("dtype", of_work("dtype"), false),
       text(
           "batch",
           [](const ComparisonRow& row) {
             return concat(row.options.training.per_device_train_batch_size);
           },
           false),
       text("global batch", of_work("global_batch_size"), false),
       text("length", of_work("max_seq_length"), false),
       text(
           "data rows", [](const ComparisonRow& row) { return concat(row.prepared->train.size()); },
           false),
       text("largest batch", largest_text, searched),
       median_of(number("final loss", 6), "train_loss_final"),
       text("tokens/s", spread_of("tokens_per_second_median", "%.0f")),
       median_of(number("step ms", 1, 1000), "step_time_median_s"),
       text("runtime s", spread_of("train_runtime", "%.2f")),
       beside("change %", runtime_change),
       {number("peak MiB", 0, 1 / kMebibyte),
        [](const ComparisonRow& row) { return number_cell(row.peak_bytes()); }},
       beside("savings %", memory_savings),
       {number("of linear %", 0, 100),
        [&](const ComparisonRow& row) {
          return scales ? number_cell(scaling_ratio(row, base)) : Cell{};
        },
        false},
       text("loss, norm, parameters", differences),
       text(kVerdict,
            [](const ComparisonRow& row) {
              return row.verdict() + (row.mark.empty() ? "" : " [" + row.mark + "]");
            })},
      width);
  const std::string second = table_text(
      view.rows,
      {name, text("parameters", bytes_beside("parameter_bytes", &StateMemory::parameter_bytes)),
       text("gradients", bytes_beside("gradient_bytes", &StateMemory::gradient_bytes)),
       text("optimizer", bytes_beside("optimizer_bytes", &StateMemory::optimizer_bytes)),
       text("on the host", bytes_beside("host_bytes", &StateMemory::host_bytes)),
       text("sent per step",
            bytes_beside("comm_bytes_per_step", &StateMemory::comm_bytes_per_step))},
      width);
  const std::string tolerance =
      view.tolerance > 0 ? concat(view.tolerance) : "1e-05 in fp32, 0.02 in 16 bit";
  const auto note = [width](const auto&... parts) {
    return wrapped_lines(concat(parts..., "\n"), 2, width);
  };
  return concat(
      first,
      note("mesh: pipeline x data x tensor ranks. change, savings: of runtime and peak memory, "
           "beside ",
           base.name,
           ". peak: allocated on the GPU, or resident in all ranks' processes together."),
      note("The three differences are the largest relative ones to the first row of the same "
           "work; PASS: all within ",
           tolerance, ". [...]: other work than ", base.name, "'s."),
      view.repeat > 1
          ? note("Medians of ", view.repeat, " runs +- their standard deviation (the least).")
          : "",
      "\n", second,
      note("MiB of the largest rank, measured / formula (docs/concepts/strategies.md). sent per "
           "step: what rank 0 hands to the wire."));
}

}  // namespace tessera::programs
