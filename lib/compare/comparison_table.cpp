// SPDX-License-Identifier: MIT
#include "lib/compare/comparison_table.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "lib/core/number_text.h"
#include "lib/core/printed.h"
#include "lib/core/terminal.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr double kMebibyte = 1048576;
constexpr const char* kVerdict = "verdict";

using Cell = std::function<std::string(const ComparisonRow&)>;
struct Column {
  std::string title;
  Cell cell;
  bool always = true;  // false: shown only if rows differ
};

std::string text_of(const char* pattern, const std::optional<double>& value, double scale = 1) {
  if (!value) return "-";
  return without_negative_zero(printed(pattern, *value * scale), pattern[1] == '+');
}

Cell median_of(const std::string& key, const char* pattern) {
  return [=](const ComparisonRow& row) { return text_of(pattern, row.median(key)); };
}

// "median ± standard deviation (min)" for several runs.
Cell spread_of(const std::string& key, const char* pattern) {
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
Cell bytes_beside(const std::string& key, double StateMemory::*formula) {
  return [=](const ComparisonRow& row) -> std::string {
    if (!row.finished()) return "-";
    if (!row.peer.empty()) return "-";
    return text_of("%.3f", row.median(key), 1 / kMebibyte) +
           printed(" / %.3f", row.formula.*formula / kMebibyte);
  };
}

std::string mesh_text(const ComparisonRow& row) {
  const MeshExtents mesh = row.mesh();
  return concat(mesh.pipeline, "x", mesh.data, "x", mesh.tensor);
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
  std::vector<TableColumn> shown;
  for (const Column& column : columns) {
    std::vector<std::string> cells;
    for (const ComparisonRow& row : rows) cells.push_back(column.cell(row));
    const bool alike =
        std::ranges::all_of(cells, [&](const auto& cell) { return cell == cells.front(); });
    if (alike && !column.always) continue;
    cells.insert(cells.begin(), column.title);
    shown.push_back({std::move(cells), shown.empty() || column.title == kVerdict});
  }
  return aligned_table(shown, width);
}

}  // namespace

std::string comparison_text(const ComparisonView& view, size_t width) {
  const ComparisonRow& base = view.baseline;
  const auto of_work = [](const std::string& key) -> Cell {
    return [=](const ComparisonRow& row) {
      const auto found = row.work.find(key);
      return found == row.work.end() ? "-" : found->second;
    };
  };
  const auto beside = [&](auto* measure) -> Cell {
    return [&base, measure](const ComparisonRow& row) {
      return &row == &base ? "baseline" : text_of("%+.1f", measure(row, base), 100);
    };
  };
  const bool scales = std::ranges::any_of(
      view.rows, [&](const ComparisonRow& row) { return row.ranks != base.ranks; });
  const bool searched = std::ranges::any_of(
      view.rows, [](const ComparisonRow& row) { return row.largest.has_value(); });
  const Column name{"row", [](const ComparisonRow& row) { return row.name; }};
  const std::string first = table_text(
      view.rows,
      {name,
       {"mesh", mesh_text},
       {"model", [](const ComparisonRow& row) { return row.prepared->model.name; }, false},
       {"dtype", of_work("dtype"), false},
       {"batch",
        [](const ComparisonRow& row) {
          return concat(row.options.training.per_device_train_batch_size);
        },
        false},
       {"global batch", of_work("global_batch_size"), false},
       {"length", of_work("max_seq_length"), false},
       {"data rows", [](const ComparisonRow& row) { return concat(row.prepared->train.size()); },
        false},
       {"largest batch", largest_text, searched},
       {"final loss", median_of("train_loss_final", "%.6f")},
       {"tokens/s", spread_of("tokens_per_second_median", "%.0f")},
       {"step ms",
        [](const ComparisonRow& row) {
          return text_of("%.1f", row.median("step_time_median_s"), 1000);
        }},
       {"runtime s", spread_of("train_runtime", "%.2f")},
       {"change %", beside(runtime_change)},
       {"peak MiB",
        [](const ComparisonRow& row) { return text_of("%.0f", row.peak_bytes(), 1 / kMebibyte); }},
       {"savings %", beside(memory_savings)},
       {"of linear %",
        [&](const ComparisonRow& row) {
          return scales ? text_of("%.0f", scaling_ratio(row, base), 100) : "-";
        },
        false},
       {"loss, norm, parameters", differences},
       {kVerdict,
        [](const ComparisonRow& row) {
          return row.verdict() + (row.mark.empty() ? "" : " [" + row.mark + "]");
        }}},
      width);
  const std::string second = table_text(
      view.rows,
      {name,
       {"parameters", bytes_beside("parameter_bytes", &StateMemory::parameter_bytes)},
       {"gradients", bytes_beside("gradient_bytes", &StateMemory::gradient_bytes)},
       {"optimizer", bytes_beside("optimizer_bytes", &StateMemory::optimizer_bytes)},
       {"on the host", bytes_beside("host_bytes", &StateMemory::host_bytes)},
       {"sent per step", bytes_beside("comm_bytes_per_step", &StateMemory::comm_bytes_per_step)}},
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
