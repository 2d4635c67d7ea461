// SPDX-License-Identifier: MIT
// Plots with one bar per run, and the plot over the number of ranks.
#include <algorithm>
#include <cmath>
#include <map>

#include "lib/report/figures.h"
#include "lib/report/verdict.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

constexpr double kToMebibytes = 1.0 / (1 << 20);

double or_zero(const std::optional<double>& value) { return value.value_or(0); }

bool is_baseline(const Study& study, const Group& group) { return &group == study.baseline; }

std::vector<std::string> notes_of(const Study& study, const BarChart& chart) {
  std::vector<std::string> marks;
  for (const Group& group : study.groups) {
    const std::string name = study.marked_name(group);
    const bool shown =
        std::ranges::any_of(chart.bars, [&](const Bar& b) { return b.name == name; });
    if (shown) marks.push_back(study.marks.of(group.first()));
  }
  return study.marks.notes(marks);
}

// Draws both sizes. The table has one column per category that occurs.
Figure finish(const Study& study, Figure figure, BarChart chart) {
  figure.notes = notes_of(study, chart);
  for (size_t part = chart.categories.size(); part-- > 0 && chart.categories.size() > 1;) {
    const bool used =
        std::ranges::any_of(chart.bars, [&](const Bar& b) { return b.parts[part] > 0; });
    if (used) continue;
    const auto at = static_cast<std::ptrdiff_t>(part);
    chart.categories.erase(chart.categories.begin() + at);
    chart.colors.erase(chart.colors.begin() + at);
    for (Bar& bar : chart.bars) bar.parts.erase(bar.parts.begin() + at);
  }
  const bool marker =
      std::ranges::any_of(chart.bars, [](const Bar& bar) { return bar.marker.has_value(); });
  const bool spread =
      std::ranges::any_of(chart.bars, [](const Bar& bar) { return bar.spread.has_value(); });
  if (chart.bars.empty()) return {};
  figure.table.id = figure.id;
  figure.table.title = figure.title;
  figure.table.columns = {{"run", "run", 1, -1, true}};
  const auto column = [&](const std::string& title) {
    figure.table.columns.push_back({.key = title, .title = title});
  };
  for (const std::string& category : chart.categories) column(category);
  if (marker) column(chart.marker_name);
  if (spread) column("standard deviation");
  for (const Bar& bar : chart.bars) {
    Row row{.cells = {{.text = bar.name}}, .is_baseline = bar.is_baseline};
    for (const double part : bar.parts) row.cells.push_back({part, ""});
    if (marker) row.cells.push_back({bar.marker, ""});
    if (spread) row.cells.push_back({bar.spread, ""});
    figure.table.rows.push_back(std::move(row));
  }
  if (chart.categories.size() > 1) {
    for (size_t i = 0; i < chart.categories.size(); ++i) {
      figure.legend.push_back({chart.categories[i], fill_class(chart.colors[i]) + " bar"});
    }
  }
  if (marker) figure.legend.push_back({chart.marker_name, "marker"});
  figure.wide = draw(chart, Screen::kWide);
  figure.narrow = draw(chart, Screen::kNarrow);
  return figure;
}

}  // namespace

Figure rate_figure(const Study& study) {
  BarChart chart{.title = "Tokens per second",
                 .x_title = "tokens/s",
                 .categories = {"tokens/s"},
                 .colors = {0}};
  for (const Group& group : study.groups) {
    const auto rate = group.median("tokens_per_second_median");
    if (!rate && group.finished()) continue;
    Bar bar{.name = study.marked_name(group),
            .parts = {or_zero(rate)},
            .is_baseline = is_baseline(study, group)};
    bar.label = rate ? number_text(*rate) : outcome_name(group.outcome());
    bar.spread = group.deviation("tokens_per_second_median");
    chart.bars.push_back(std::move(bar));
  }
  return finish(study,
                {.id = "rate",
                 .title = chart.title,
                 .about = "Of all ranks together: the median step, warm-up left out. A whisker is "
                          "the standard deviation over repeats."},
                chart);
}

Figure memory_figure(const Study& study) {
  const bool gpu = compares_gpu_memory(study.groups);
  BarChart chart{
      .title = "Memory of one rank by category", .x_title = "MiB", .marker_name = "planned"};
  for (const TensorBytes& one : kHeldBytes) {
    chart.categories.push_back(one.title);
    chart.colors.push_back(one.color);
  }
  chart.categories.insert(chart.categories.end(), {"activations and workspace", "on the host"});
  chart.colors.insert(chart.colors.end(), {4, 3});
  for (const Group& group : study.groups) {
    if (!group.median("parameter_bytes") && group.finished()) continue;
    Bar bar{.name = study.marked_name(group), .is_baseline = is_baseline(study, group)};
    double planned = 0;
    bool has_plan = true;
    for (const double bytes : tensor_parts(group, gpu)) bar.parts.push_back(bytes * kToMebibytes);
    for (const TensorBytes& one : kHeldBytes) {
      std::string formula = one.key;
      formula.replace(formula.find("_bytes"), 6, "_formula_bytes");
      const auto plan = group.median(formula);
      has_plan = has_plan && plan;
      planned += or_zero(plan);
    }
    // Without a planned peak the line shows persistent memory.
    if (const auto peak_plan = group.median("plan_allocated_bytes")) {
      bar.marker = (*peak_plan + or_zero(group.median("plan_host_bytes"))) * kToMebibytes;
    } else if (has_plan) {
      bar.marker = (planned + or_zero(group.median("host_formula_bytes"))) * kToMebibytes;
    }
    double sum = 0;
    for (const double part : bar.parts) sum += part;
    bar.label = group.finished() ? number_text(sum) : outcome_name(group.outcome());
    chart.bars.push_back(std::move(bar));
  }
  constexpr size_t kActivations = std::size(kHeldBytes);
  const bool peaks =
      std::ranges::any_of(chart.bars, [](const Bar& bar) { return bar.parts[kActivations] > 0; });
  return finish(
      study,
      {.id = "memory",
       .title = chart.title,
       .about = peaks ? "The rank that holds most: what it keeps between steps, and what a "
                        "step adds to it at its peak."
                      : "The rank that holds most, what it keeps between steps."},
      chart);
}

Figure phases_figure(const Study& study) {
  BarChart chart{.title = "Step time by phase", .x_title = "ms"};
  for (const Phase& one : kPhases) {
    chart.categories.push_back(one.title);
    chart.colors.push_back(one.color);
  }
  chart.categories.push_back("the rest");
  chart.colors.push_back(6);
  for (const Group& group : study.groups) {
    const Series& steps = group.first().steps;
    const auto whole = steps.mean("step_time_s");
    if (!whole) continue;
    Bar bar{.name = study.marked_name(group), .is_baseline = is_baseline(study, group)};
    double sum = 0;
    for (const Phase& one : kPhases) {
      const double time = or_zero(steps.mean(one.key));
      sum += time;
      bar.parts.push_back(time * 1e3);
    }
    bar.parts.push_back(std::max(0.0, *whole - sum) * 1e3);
    bar.label = number_text(*whole * 1e3) + " ms";
    chart.bars.push_back(std::move(bar));
  }
  return finish(
      study,
      {.id = "phases",
       .title = chart.title,
       .about = "Means over the steps of the reporting rank. Work that runs beside another "
                "phase counts in none."},
      chart);
}

Figure scaling_figure(const Study& study) {
  LineChart chart{.title = "Scaling", .x_title = "ranks", .y_title = "tokens/s", .from_zero = true};
  Figure figure{.id = "scaling",
                .title = chart.title,
                .about = "Dashed and thin: as fast per rank as the smallest number of ranks.",
                .numbered = true};
  figure.table = {.id = "scaling",
                  .title = "Scaling",
                  .columns = {{"series", "series", 1, -1, true},
                              {"ranks", "ranks", 1, 0},
                              {"tokens_per_second", "tokens/s"},
                              {"ideal", "ideal tokens/s"}}};
  int color = 0;
  std::vector<Line> ideals;
  for (const Scaling& series : scaling_series(study)) {
    Line line{.name = series.name, .color = color};
    Line ideal{.color = color, .ideal = true};
    for (const Group* group : series.groups) {
      const auto rate = group->median("tokens_per_second_median");
      if (!rate) continue;
      const double ranks = group->median("world_size").value_or(1);
      line.points.x.push_back(ranks);
      line.points.y.push_back(*rate);
      ideal.points.x.push_back(ranks);
      ideal.points.y.push_back(line.points.y.front() / line.points.x.front() * ranks);
      figure.table.rows.push_back(
          {.cells = {{.text = line.name}, {ranks, ""}, {*rate, ""}, {ideal.points.y.back(), ""}}});
    }
    if (line.points.x.size() < 2) continue;
    line.marks = line.points;
    figure.legend.push_back({line.name, stroke_class(color++)});
    chart.lines.push_back(std::move(line));
    ideals.push_back(std::move(ideal));
  }
  if (chart.lines.empty()) return {};
  std::ranges::move(ideals, std::back_inserter(chart.lines));
  figure.wide = draw(chart, Screen::kWide);
  figure.narrow = draw(chart, Screen::kNarrow);
  return figure;
}

}  // namespace tessera::report
