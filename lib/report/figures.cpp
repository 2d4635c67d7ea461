// SPDX-License-Identifier: MIT
#include "lib/report/figures.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/report/verdict.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

struct CurveKind {
  const char *id, *title, *about;
  const char *x, *x_title, *y, *y_title;
  double scale;
  bool from_zero, of_resources, says_identical = false;
};
constexpr CurveKind kCurves[] = {
    {"loss", "Training loss", "One line a run; dots are evaluations.", "step", "step", "loss",
     "loss", 1, false, false, true},
    {"rate_by_step", "Tokens per second over the run",
     "Of all ranks together, padding included where rows are padded.", "step", "step",
     "tokens_per_second", "tokens/s", 1, true, false},
    {"gradient_norm", "Norm of the gradient", "Before clipping.", "step", "step", "grad_norm",
     "norm of the gradient", 1, true, false, true},
    {"gpu_utilisation", "GPU utilisation", "Mean of the run's GPUs.", "elapsed_s", "seconds",
     "gpu_util_ratio", "utilisation, %", 100, true, true},
    {"gpu_memory", "GPU memory in use", "What the driver says, mean of the run's GPUs.",
     "elapsed_s", "seconds", "gpu_mem_used_bytes", "MiB", 1.0 / (1 << 20), true, true},
    {"cpu_utilisation", "CPU utilisation of the node", "Busy share of all cores.", "elapsed_s",
     "seconds", "cpu_util_ratio", "utilisation, %", 100, true, true},
    {"cpu_memory", "CPU memory", "Resident in all processes of the run on its node.", "elapsed_s",
     "seconds", "cpu_rss_tree_bytes", "MiB", 1.0 / (1 << 20), true, true}};

// Averages samples of several GPUs taken at one time.
Points one_a_sample(const Points& samples) {
  Points means;
  std::vector<int> counts;
  constexpr double kTogether = 0.05;  // seconds
  for (size_t i = 0; i < samples.x.size(); ++i) {
    if (!std::isfinite(samples.y[i])) continue;
    if (means.x.empty() || samples.x[i] - means.x.back() > kTogether) {
      means.x.push_back(samples.x[i]);
      means.y.push_back(0);
      counts.push_back(0);
    }
    ++counts.back();
    means.y.back() += (samples.y[i] - means.y.back()) / counts.back();
  }
  return means;
}

Points points_of(const Run& run, const CurveKind& kind) {
  const Series& series = kind.of_resources ? run.resources : run.steps;
  Points points{series.column(kind.x), series.column(kind.y)};
  for (double& y : points.y) y *= kind.scale;
  return kind.of_resources ? one_a_sample(points) : points;
}

size_t known(const Points& points) {
  return static_cast<size_t>(
      std::ranges::count_if(points.y, [](double y) { return std::isfinite(y); }));
}

Row summary_row(const std::string& name, const Points& points) {
  std::vector<double> values;
  for (const double y : points.y) {
    if (std::isfinite(y)) values.push_back(y);
  }
  Row row{.cells = {{.text = name}}};
  if (values.empty()) {
    row.cells.resize(6);
    return row;
  }
  double sum = 0;
  for (const double value : values) sum += value;
  const auto [least, most] = std::ranges::minmax(values);
  for (const double value :
       {values.front(), least, sum / static_cast<double>(values.size()), most, values.back()}) {
    row.cells.push_back({value, ""});
  }
  return row;
}

// Repeats of a configuration look alike, so only the first is drawn.
Figure curve_figure(const Study& study, const CurveKind& kind) {
  LineChart chart{.title = kind.title,
                  .x_title = kind.x_title,
                  .y_title = kind.y_title,
                  .from_zero = kind.from_zero,
                  .whole_x = !kind.of_resources};
  Figure figure{.id = kind.id, .title = kind.title, .about = kind.about, .numbered = true};
  figure.table = {.id = kind.id,
                  .title = kind.title,
                  .columns = {{"run", "run", 1, -1, true},
                              {"first", "first"},
                              {"least", "least"},
                              {"mean", "mean"},
                              {"greatest", "greatest"},
                              {"last", "last"}}};
  int color = 0;
  std::vector<std::string> marks;
  std::vector<NamedCurve> curves;
  for (const Group& group : study.groups) {
    const int mine = color++;
    const std::string name = study.marked_name(group);
    Line line{.name = name, .color = mine, .points = points_of(group.first(), kind)};
    const Series& evaluations = group.first().evaluations;
    if (kind.id == std::string("loss") && evaluations.has("eval_loss")) {
      line.marks = {evaluations.column("step"), evaluations.column("eval_loss")};
    }
    if (known(line.points) < 2) continue;
    if (kind.says_identical) curves.push_back({name, line.points.x, line.points.y});
    figure.table.rows.push_back(summary_row(name, line.points));
    figure.legend.push_back({name, stroke_class(mine)});
    chart.lines.push_back(std::move(line));
    marks.push_back(study.marks.of(group.first()));
  }
  if (chart.lines.empty()) return {};
  if (kind.says_identical) {
    const std::string same = identical_curves(curves);
    if (!same.empty()) figure.about += " " + same;
  }
  figure.notes = study.marks.notes(marks);
  figure.wide = draw(chart, Screen::kWide);
  figure.narrow = draw(chart, Screen::kNarrow);
  return figure;
}

}  // namespace

std::vector<Figure> make_figures(const Study& study) {
  std::vector<Figure> figures;
  const auto add = [&](Figure figure) {
    if (!figure.wide.empty()) figures.push_back(std::move(figure));
  };
  add(curve_figure(study, kCurves[0]));
  add(rate_figure(study));
  add(scaling_figure(study));
  add(memory_figure(study));
  add(phases_figure(study));
  for (size_t i = 1; i < std::size(kCurves); ++i) add(curve_figure(study, kCurves[i]));
  return figures;
}

}  // namespace tessera::report
