// SPDX-License-Identifier: MIT
// Numbers, plots and page of tessera-report.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <regex>
#include <sstream>

#include "lib/report/charts.h"
#include "lib/report/figures.h"
#include "lib/report/page.h"
#include "lib/report/read_runs.h"
#include "lib/report/report.h"
#include "tessera/core/error.h"
#include "tests/programs/report_runs.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::report;
using namespace tessera::test;

namespace {

const Figure& figure(const std::vector<Figure>& figures, const std::string& id) {
  const auto found = std::ranges::find_if(figures, [&](const Figure& f) { return f.id == id; });
  REQUIRE(found != figures.end());
  return *found;
}

// Limits the process's address space to its current size plus `bytes`.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t more) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    REQUIRE(getrlimit(RLIMIT_AS, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = std::min<rlim_t>(
        limit.rlim_cur, pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + uint64_t(more));
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

// Widths of the rectangles of a class, in drawing order.
std::vector<double> widths(const std::string& svg, const std::string& classes) {
  std::vector<double> found;
  const std::regex pattern("<rect class=\"" + classes + "\"[^>]* width=\"([0-9.]+)\"");
  for (std::sregex_iterator i(svg.begin(), svg.end(), pattern), end; i != end; ++i) {
    found.push_back(std::stod((*i)[1]));
  }
  return found;
}

}  // namespace

TEST_CASE("report: numbers are rounded to four digits and grouped") {
  CHECK(number_text(1234567.8) == "1,234,568");
  CHECK(number_text(-999999.5) == "-1,000,000");
  CHECK(number_text(12.3456) == "12.35");
  CHECK(number_text(0.00123456) == "0.001235");
  CHECK(number_text(0.000012) == "1.2e-05");
  CHECK(number_text(0) == "0");
  CHECK(number_text(4, 0) == "4");
  CHECK(number_text(123.456, 1) == "123.5");
  CHECK(number_text(std::nan("")) == "–");
}

TEST_CASE("report page: ticks are round and hold the values") {
  CHECK(round_ticks(0, 10, 6) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(round_ticks(7.56, 7.71, 6).front() == Approx(7.55));
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 1e-9}, {-3.2, 17}, {1234567, 1234890}, {5, 5}, {0, 0}, {-1e12, 1e12}}) {
    const std::vector<double> ticks = round_ticks(low, high, 6);
    INFO(low << " to " << high);
    CHECK(ticks.size() >= 2);
    CHECK(ticks.size() <= 8);
    CHECK(ticks.front() <= low + 1e-9 * std::abs(low));
    CHECK(ticks.back() >= high - 1e-9 * std::abs(high));
  }
  CHECK(tick_texts({0, 5000, 10000}) == std::vector<std::string>{"0", "5k", "10k"});
  CHECK(tick_texts({0, 0.25, 0.5}) == std::vector<std::string>{"0", "0.25", "0.50"});
  CHECK(tick_texts({0, 2500000, 5000000}) == std::vector<std::string>{"0", "2.5M", "5.0M"});
}

TEST_CASE("report page: any doubles give few ticks and a small drawing") {
  const MemoryLimit limit(int64_t{1} << 30);  // stops an endless loop
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  std::vector<std::vector<double>> samples{{1e17, 1e17 + 16, 1e17 + 32, 1e17 + 48},
                                           {0x1p53, 0x1p53 + 2, 0x1p53 + 4},
                                           {1e300, -1e300, 1e300},
                                           {1.7e308, -1.7e308, 1},
                                           {kInfinity, -kInfinity, std::nan(""), 2, 3},
                                           {kInfinity, kInfinity},
                                           {kTiny, 2 * kTiny, 0, 5 * kTiny},
                                           {1, 1 + 1e-16, std::nextafter(1, 2)},
                                           {-1e17, 1e17 + 16},
                                           {1e-30, 2e-30},
                                           {7, 7, 7},
                                           {}};
  for (const std::vector<double>& values : samples) {
    INFO(Catch::Detail::stringify(values));
    Points points;
    for (const double value : values) {
      points.x.push_back(static_cast<double>(points.x.size()));
      points.y.push_back(value);
    }
    for (const double low : values) {
      for (const double high : values) {
        for (const int most : {1, 5, 9}) {
          const std::vector<double> ticks = round_ticks(low, high, most);
          CHECK(ticks.size() >= 2);
          CHECK(ticks.size() <= static_cast<size_t>(2 * std::max(2, most) + 1));
          CHECK(std::ranges::adjacent_find(ticks, std::greater_equal()) == ticks.end());
          CHECK(std::ranges::all_of(ticks, [](double tick) { return std::isfinite(tick); }));
          for (const std::string& text : tick_texts(ticks)) CHECK(text.size() <= 16);
          if (low > high || !is_drawn(low) || !is_drawn(high)) continue;
          CHECK(ticks.front() <= low + 1e-9 * std::abs(low));
          CHECK(ticks.back() >= high - 1e-9 * std::abs(high));
        }
      }
    }
    LineChart chart{.title = "t", .x_title = "step", .y_title = "loss"};
    for (const bool whole : {false, true}) {
      chart.whole_x = whole;
      chart.lines = {{.name = "a", .points = points},
                     {.name = "b", .points = {points.y, points.x}}};
      CHECK(draw(chart, Screen::kWide).size() < 10'000);
    }
    BarChart bars{.title = "t", .x_title = "ms", .categories = {"a"}, .colors = {0}};
    for (const double value : values) {
      bars.bars.push_back({.name = "one", .parts = {value}, .label = "x", .spread = value});
    }
    CHECK(draw(bars, Screen::kNarrow).size() < 10'000);
  }
  CHECK(tick_texts({0, 1e17, 2e17}) == std::vector<std::string>{"0", "1e+17", "2e+17"});
  CHECK(tick_texts({0, 1e-9}) == std::vector<std::string>{"0", "1e-09"});
}

TEST_CASE("report page: a thinned line keeps the extremes of every column") {
  Points points;
  for (int i = 0; i < 100'000; ++i) {
    points.x.push_back(i);
    points.y.push_back(std::sin(i * 0.001));
  }
  points.y[55'555] = 40;
  points.y[77'777] = -40;
  points.y[1'000] = std::nan("");
  const Points few = thinned(points, 700);
  CHECK(few.x.size() <= 2800);
  CHECK(std::ranges::is_sorted(few.x));
  CHECK(*std::ranges::max_element(few.y) == 40);
  CHECK(*std::ranges::min_element(few.y) == -40);
  CHECK(few.x.front() == 0);
  CHECK(few.x.back() == 99'999);
  CHECK(std::ranges::none_of(few.y, [](double y) { return std::isnan(y); }));
  CHECK(thinned({{1, 2, 3}, {1, 2, 3}}, 700).x.size() == 3);
}

TEST_CASE("report page: bars are as long as their values") {
  BarChart chart{.title = "t", .x_title = "ms", .categories = {"a", "b"}, .colors = {0, 1}};
  chart.bars = {{.name = "one", .parts = {10, 20}, .label = "30"},
                {.name = "two & <three>", .parts = {5, 0}, .label = "5", .marker = 8}};
  for (const Screen screen : {Screen::kWide, Screen::kNarrow}) {
    const std::string svg = draw(chart, screen);
    const std::vector<double> a = widths(svg, "f1 bar"), b = widths(svg, "f2 bar");
    REQUIRE(a.size() == 2);
    REQUIRE(b.size() == 1);
    CHECK(b[0] == Approx(2 * a[0]).margin(0.2));
    CHECK(a[1] == Approx(a[0] / 2).margin(0.2));
    CHECK(has(svg, "two &amp; &lt;three&gt;"));
    CHECK(has(svg, "class=\"marker\""));
  }
}

TEST_CASE("report page: lines end with their names, on a phone with their numbers") {
  LineChart chart{.title = "t", .x_title = "step", .y_title = "loss"};
  chart.lines = {{.name = "zero2-4", .color = 0, .points = {{1, 2, 3}, {3, 2, 1}}},
                 {.name = "zero3-4", .color = 9, .points = {{1, 2, 3}, {3, 2, 1}}}};
  const std::string wide = draw(chart, Screen::kWide), narrow = draw(chart, Screen::kNarrow);
  CHECK(has(wide, ">zero2-4</text>"));
  CHECK_FALSE(has(narrow, ">zero2-4</text>"));
  CHECK(has(narrow, "<text class=\"end f2\""));
  CHECK(has(wide, "line s2 dashed"));
  // Both lines end at one place, but their labels do not overlap.
  std::vector<std::string> places;
  const std::regex pattern("<text class=\"end[^>]* y=\"([0-9.]+)\"");
  for (std::sregex_iterator i(wide.begin(), wide.end(), pattern), end; i != end; ++i) {
    places.push_back((*i)[1]);
  }
  REQUIRE(places.size() == 2);
  CHECK(std::abs(std::stod(places[0]) - std::stod(places[1])) >= 14);
}

TEST_CASE("report page: figures hold the numbers of the runs") {
  const TempDir folder;
  write_runs(folder.path("ddp"), [](MadeRun& made, int64_t) { made.eval_losses = {1.5}; });
  const Study study(read_runs({folder.path(".")}), "");
  const std::vector<Figure> figures = make_figures(study);
  const Figure& scaling = figure(figures, "scaling");
  REQUIRE(scaling.table.rows.size() == 3);
  CHECK(scaling.table.rows[0].cells[0].text == "ddp");
  CHECK(*scaling.table.rows[2].cells[2].number == Approx(40'000));
  CHECK(*scaling.table.rows[2].cells[3].number == Approx(40'000));
  CHECK(has(scaling.wide, "class=\"ideal\""));
  const Figure& loss = figure(figures, "loss");
  CHECK(loss.table.rows.size() == 3);
  CHECK(loss.notes.size() == 2);  // runs of other global batches
  CHECK(has(loss.wide, "ddp-2 [a]"));
  CHECK(has(loss.wide, "<circle"));
  const Figure& phases = figure(figures, "phases");
  CHECK(*phases.table.rows[0].cells[1].number == Approx(100));
  CHECK(std::ranges::none_of(figures, [](const Figure& f) { return f.id == "gpu_memory"; }));
}

TEST_CASE("report page: the memory of a run stands beside its plan") {
  const TempDir folder;
  MadeRun made;
  made.end = {{"parameter_bytes", int64_t{4} << 20},
              {"measured_parameter_bytes", int64_t{3} << 20},
              {"measured_activation_bytes", int64_t{5} << 20},
              {"plan_allocated_bytes", int64_t{9} << 20},
              {"measured_host_bytes", int64_t{2} << 20},
              {"plan_host_bytes", int64_t{1} << 20}};
  made.write(folder.path("a"));
  const Study study(read_runs({folder.path("a")}), "");
  const Figure memory = memory_figure(study);
  std::map<std::string, double> cells;
  for (size_t i = 1; i < memory.table.columns.size(); ++i) {
    cells[memory.table.columns[i].title] = *memory.table.rows[0].cells[i].number;
  }
  const std::map<std::string, double> expected{
      {"parameters", 3}, {"activations and workspace", 5}, {"on the host", 2}, {"planned", 10}};
  CHECK(cells == expected);
}

TEST_CASE("report page: MFU of another formula or peak is not in the baseline's column") {
  const TempDir folder;
  MadeRun made;
  made.mfu = 0.5;
  made.start.mfu_formula = "causal";
  made.start.peak_flops_per_second = 1e12;
  made.write(folder.path("a"));
  made.start.seed = 0;
  made.options.parallel.strategy = "zero2";
  made.write(folder.path("b"));
  made.options.parallel.strategy = "zero3";
  made.start.mfu_formula = "full";
  made.write(folder.path("c"));
  const Study study(read_runs({folder.path(".")}), "a");
  const Table table = make_tables(study, {"1"}).front();
  const auto column =
      std::ranges::find_if(table.columns, [](const Column& c) { return c.key == "mfu_ratio"; }) -
      table.columns.begin();
  CHECK(table.rows[0].cells[static_cast<size_t>(column)].number == 0.5);
  CHECK(table.rows[1].cells[static_cast<size_t>(column)].number == 0.5);
  CHECK_FALSE(table.rows[2].cells[static_cast<size_t>(column)].number);
  CHECK(has(to_markdown(table), "MFU: causal; peak 1.000 TFLOP/s"));
}

TEST_CASE("report page: one file that needs nothing else, and holds no text of a run as markup") {
  const TempDir folder;
  MadeRun made;
  made.start.model = "<script>alert(1)</script>";
  made.write(folder.path("a<b>"));
  made.options.parallel.strategy = "zero2";
  made.exit_code = 3;
  made.write(folder.path("b"));
  const Study study(read_runs({folder.path(".")}), "");
  const std::string html = to_html(study, make_figures(study), make_tables(study));
  for (const char* outside : {"<script", "http:", "https:", "<link", "@import", "url(", " src="}) {
    INFO(outside);
    CHECK_FALSE(has(html, outside));
  }
  CHECK(has(html, "&lt;script&gt;"));
  CHECK(has(html, "prefers-color-scheme:dark"));
  CHECK(has(html, "name=\"viewport\""));
  CHECK(has(html, "<td class=\"t w\" data-t=\"strategy\">zero2</td>"));  // a word is not broken
  CHECK(has(html, "out of memory"));
  for (const char* tag : {"table", "section", "svg", "figure", "details", "ul", "main"}) {
    INFO(tag);
    const auto count = [&](const std::string& part) {
      size_t found = 0;
      for (size_t at = html.find(part); at != html.npos; at = html.find(part, at + 1)) ++found;
      return found;
    };
    CHECK(count(concat("<", tag, ">")) + count(concat("<", tag, " ")) ==
          count(concat("</", tag, ">")));
  }
}

TEST_CASE("report page: a run of many steps gives a small file") {
  const TempDir folder;
  MadeRun made;
  made.steps = 20'000;
  made.write(folder.path("long"));
  const Study study(read_runs({folder.path("long")}), "");
  CHECK(study.runs.front().steps.size() == 20'000);
  CHECK(to_html(study, make_figures(study), make_tables(study)).size() < 400'000);
}

TEST_CASE("report page: two runs stand side by side with what sets them apart") {
  const TempDir folder;
  MadeRun a, b;
  a.settings = {{"learning_rate", "0.001"}, {"bucket_bytes", "100"}};
  a.write(folder.path("a"));
  b.settings = {{"learning_rate", "0.002"}, {"bucket_bytes", "100"}};
  b.step_time_s = 0.2;
  b.write(folder.path("b"));
  const Study study(read_runs({folder.path("a"), folder.path("b")}), "");
  const std::vector<Table> tables = side_by_side(study);
  REQUIRE(tables.size() == 2);
  REQUIRE(tables[0].rows.size() == 1);
  CHECK(tables[0].rows[0].cells[0].text == "learning_rate");
  CHECK(tables[0].rows[0].cells[1].text == "0.001");
  CHECK(tables[0].rows[0].cells[2].text == "0.002");
  const auto row = std::ranges::find_if(
      tables[1].rows, [](const Row& r) { return r.cells[0].text == "median tokens/s"; });
  REQUIRE(row != tables[1].rows.end());
  CHECK(*row->cells[3].number == Approx(0.5));
  CHECK(row->mark == "a");
}

TEST_CASE("report page: a certificate says what was compared with what") {
  const TempDir folder;
  MadeRun reference, zero;
  reference.write(folder.path("single-1"));
  zero.options.parallel.strategy = "zero2";
  zero.loss = 2.002;
  zero.write(folder.path("zero2-2"));
  folder.write("comparison.csv",
               "row,loss_difference_ratio,parameter_difference_ratio,worst_parameter,exit_code,"
               "verdict\nsingle-1,,,,0,reference\nzero2-2,1e-3,2e-7,h.0.weight,0,FAIL\n");
  const Study study(read_runs({folder.path(".")}), "");
  const Table table = certificate_table(study);
  REQUIRE(table.rows.size() == 1);
  const auto cell = [&](const std::string& key) {
    for (size_t i = 0; i < table.columns.size(); ++i) {
      if (table.columns[i].key == key) return table.rows[0].cells[i];
    }
    FAIL("no column " << key);
    return Cell{};
  };
  CHECK(cell("run").text == "zero2-2");
  CHECK(cell("reference").text == "single-1");
  CHECK(cell("verdict").text == "FAIL");
  CHECK(*cell("loss_difference_ratio").number == 1e-3);
  CHECK(*cell("loss_difference_from_steps_ratio").number == Approx(1e-3));
  CHECK(cell("worst_parameter").text == "h.0.weight");
  CHECK(cell("seeds").text == "0");
  CHECK(cell("data_sha256").text == "aaaaaaaaaaaa");
}

TEST_CASE("report: a terminal gets aligned columns within its width, a pipe Markdown") {
  const TempDir folder;
  MadeRun made;
  made.write(folder.path("a"));
  made.options.parallel.strategy = "zero2";
  made.write(folder.path("b"));
  const auto lines = [&](size_t width) {
    std::ostringstream out, err;
    CHECK(run_report({folder.path("."), "--tables", "1,4"}, out, err, width) == 0);
    std::istringstream in(out.str());
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  };
  const auto count = [](const std::vector<std::string>& all, const std::string& begin) {
    return std::ranges::count_if(all, [&](const auto& line) { return line.starts_with(begin); });
  };
  CHECK(count(lines(0), "| run ") == 2);
  CHECK(count(lines(0), "## Table 4. ") == 1);
  for (const size_t width : {60, 80, 200}) {
    const std::vector<std::string> all = lines(width);
    for (const std::string& line : all) {
      INFO(line);
      CHECK(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }) <=
            static_cast<std::ptrdiff_t>(width));
      CHECK_FALSE(line.starts_with("|"));
    }
    CHECK(count(all, "Table 4. ") == 1);
    CHECK(count(all, "run ") >= (width < 200 ? 4 : 2));
    CHECK(count(all, "a (baseline)") == count(all, "run "));
  }
}
