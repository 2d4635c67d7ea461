// SPDX-License-Identifier: MIT
// Plots and tables as separate files.
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "lib/core/file.h"
#include "lib/report/files.h"
#include "lib/report/read_runs.h"
#include "lib/report/report.h"
#include "tests/programs/report_runs.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::report;
using namespace tessera::test;

namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Removes escaped characters: "\&" and "\\" are dropped, "&" stays.
std::string bare(const std::string& latex) {
  std::string text;
  for (size_t i = 0; i < latex.size(); ++i) {
    if (latex[i] == '\\' && i + 1 < latex.size() && !std::isalpha(latex[i + 1])) {
      ++i;
    } else {
      text += latex[i];
    }
  }
  return text;
}

// The first LaTeX error; "" for none.
std::string problem_of(const std::string& latex) {
  int depth = 0;
  std::istringstream lines(latex);
  size_t columns = 0;
  bool rows = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('%')) continue;
    const std::string text = bare(line);
    for (const char c : text) {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (depth < 0) return "unbalanced: " + line;
    }
    for (const char* special : {"#", "%", "_", "~", "^", "<", ">", "|", "\"", "--launcher"}) {
      if (has(text, special)) return concat(special, " in: ", line);
    }
    if (count_of(text, "$") % 2 != 0) return "$ in: " + line;
    const size_t begin = line.find("\\begin{tabular}{");
    if (begin != line.npos) columns = line.size() - begin - 17;
    rows = (rows || line == "\\toprule") && line != "\\bottomrule";
    if (!rows || line == "\\toprule" || line == "\\midrule") continue;
    if (!line.ends_with(" \\\\")) return "no end: " + line;
    if (line.starts_with('[') || line.starts_with('*')) return "an argument of \\\\: " + line;
    if (count_of(text, "&") + 1 != columns) return "columns: " + line;
  }
  return depth == 0 ? "" : "unbalanced";
}

void write_some(const TempDir& folder) {
  MadeRun made;
  made.end = {{"parameter_bytes", int64_t{4} << 20}, {"gradient_bytes", int64_t{2} << 20}};
  made.backward_s = 0.05;
  made.write(folder.path("a&b_100%"));
  made.options.parallel.strategy = "zero2";
  made.write(folder.path("[b] <c> {d}"));
  made.options.parallel.strategy = "zero3";
  made.start.parameter_dtype = "bf16";
  made.write(folder.path("c$#^~"));
}

}  // namespace

TEST_CASE("report files: each plot is an SVG file that needs no page") {
  const TempDir folder;
  write_some(folder);
  const Study study(read_runs({folder.path(".")}), "");
  const std::vector<Figure> figures = make_figures(study);
  REQUIRE(figures.size() >= 4);
  for (const Figure& figure : figures) {
    const std::string file = to_svg_file(figure);
    INFO(figure.id);
    CHECK(file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "));
    CHECK(count_of(file, "<svg") == 1);
    CHECK(count_of(file, "</svg>") == 1);
    CHECK(count_of(file, "<text") == count_of(file, "</text>"));
    CHECK_FALSE(has(file, "var("));
    CHECK_FALSE(has(file, ":root"));
    CHECK(has(file, ".s1{stroke:#0072b2}"));
    CHECK(has(file, "[b] &lt;c&gt; {d}"));
  }
  // The file contains the legend of stacked bars.
  const auto phases =
      std::ranges::find_if(figures, [](const Figure& f) { return f.id == "phases"; });
  REQUIRE(phases != figures.end());
  CHECK_FALSE(has(phases->wide, ">backward</text>"));
  CHECK(has(to_svg_file(*phases), ">backward</text>"));
}

TEST_CASE("report files: tables are LaTeX with booktabs, whatever runs are called") {
  CHECK(latex_escape("a_b & 5 % of $x^2 ~ #1 {y}") ==
        "a\\_b \\& 5 \\% of \\$x\\textasciicircum{}2 \\textasciitilde{} \\#1 \\{y\\}");
  CHECK(latex_escape("\\input") == "\\textbackslash{}input");
  CHECK(latex_escape("--launcher – x") == "-{}-launcher -- x");
  CHECK(latex_escape("[1]*\n\x01") == "{[}1{]}{*} ");
  const TempDir folder;
  write_some(folder);
  const Study study(read_runs({folder.path(".")}), "");
  std::vector<Table> tables = make_tables(study);
  tables.push_back({.id = "x",
                    .title = "50 % & more",
                    .about = "a_b, --launcher",
                    .columns = {{"run", "run", 1, -1, true}, {"n", "n_1 %"}},
                    .rows = {{.cells = {{.text = "[a]"}, {-1234.5, ""}}, .mark = "a,b"},
                             {.cells = {{.text = "*"}, {}}, .is_baseline = true}},
                    .notes = {"a: 100 % of <b>"}});
  for (const Table& table : tables) {
    const std::string latex = to_latex(table);
    INFO(latex);
    CHECK(problem_of(latex) == "");
    for (const char* part : {"\\toprule\n", "\\midrule\n", "\\bottomrule\n", "\\end{tabular}"}) {
      CHECK(count_of(latex, part) == 1);
    }
  }
  const std::string latex = to_latex(tables.back());
  CHECK(has(latex, "{[}a{]}\\textsuperscript{a,b} & $-$1,234 \\\\\n"));
  CHECK(has(latex, "\\textbf{{*}} & -- \\\\\n"));
  CHECK_FALSE(has(latex, "resizebox"));
  CHECK(std::ranges::any_of(tables, [](const Table& table) {
    return has(to_latex(table), "\\resizebox{\\textwidth}{!}{\\begin{tabular}{l");
  }));
  CHECK(has(latex, "\\par a: 100 \\% of \\textless{}b\\textgreater{}\n"));
}

TEST_CASE("report files: --output_dir has a plot and a table a file, --output FILE.tex one table") {
  const TempDir folder;
  write_some(folder);
  std::ostringstream out, err;
  const std::string to = folder.path("report");
  REQUIRE(run_report({folder.path("."), "--output_dir", to}, out, err) == 0);
  CHECK(has(out.str(), "plot_<name>.svg, table_<number>.csv and .tex"));
  for (const char* name : {"plot_loss.svg", "plot_rate.svg", "plot_memory.svg", "plot_phases.svg",
                           "table_1.tex", "table_4.tex"}) {
    INFO(name);
    CHECK(std::filesystem::file_size(to + "/" + name) > 200);
  }
  const std::string one = folder.path("one.tex");
  REQUIRE(run_report({folder.path("a&b_100%"), folder.path("[b] <c> {d}"), "--tables", "4",
                      "--output", one},
                     out, err) == 0);
  CHECK(problem_of(read_file(one)) == "");
  CHECK(run_report({folder.path("."), "--output", one}, out, err) == 2);
  CHECK(has(err.str(), "holds one table"));
}
