// SPDX-License-Identifier: MIT
#include "lib/report/report.h"

#include <filesystem>
#include <fstream>
#include <ostream>
#include <utility>

#include "lib/core/terminal.h"
#include "lib/report/files.h"
#include "lib/report/page.h"
#include "lib/report/read_runs.h"
#include "lib/report/tables.h"
#include "lib/report/verdict.h"
#include "lib/report/watch.h"
#include "lib/settings/flags.h"
#include "lib/settings/lists.h"
#include "lib/settings/tool.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::string baseline, tables, output, output_dir;
  std::vector<std::string> paths;
  bool watch = false;
};

// Splits paths from flags; every flag has a value.
bool parse(const std::vector<std::string>& arguments, ReportOptions& o, std::ostream& out) {
  programs::FlagSet flags("tessera-report",
                          "tessera-report RUN_OR_FOLDER...: the tables of any set of runs.");
  flags.section("Report");
  flags.add("baseline", &o.baseline,
            "name of the run that the others are compared with; else that of "
            "tessera-compare, else the first");
  flags.add("tables", &o.tables, "only these, such as 1,4,7b; else all that the runs fill");
  flags.add("output", &o.output,
            "FILE.html with plots, FILE.md, or FILE.csv or .tex for one table; else the terminal");
  flags.add("output_dir", &o.output_dir,
            "report.html, report.md, plot_<name>.svg, and table_<number>.csv and .tex");
  flags.add("watch", &o.watch,
            "write report.html into --output_dir, or into the first RUN_OR_FOLDER, again and again "
            "while the runs write; the page loads itself again");
  std::vector<std::string> options;
  bool value = false;
  for (const std::string& argument : arguments) {
    const bool flag = argument.starts_with("--");
    (flag || value ? options : o.paths).push_back(argument);
    value = flag && argument.find('=') == std::string::npos && argument != "--print_config" &&
            argument != "--version" && argument != "--watch" &&
            (argument != "--help" || o.paths.empty());
  }
  flags.parse(options);
  if (flags.help_requested() || flags.print_config_requested()) {
    out << (flags.help_requested() ? flags.help() : flags.config_json() + "\n");
    return false;
  }
  check(!o.paths.empty(), ErrorCode::kInvalidArgument,
        "name runs: tessera-report RUN_OR_FOLDER... (--help says more)");
  return true;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc | std::ios::binary);
  file << text << std::flush;
  check(file.good(), ErrorCode::kDataLoss, path,
        ": cannot be written; does its folder exist, and has the disk space?");
}

// Markdown, or text for a terminal of `width` columns.
std::string text_of(const Study& study, const std::vector<Table>& tables, size_t width = 0) {
  std::string text;
  for (const auto& [title, found] : verdict(study)) text += concat("- ", title, ": ", found, "\n");
  if (!text.empty()) text += "\n";
  text += concat(study.runs.size(), " run(s)");
  if (study.groups.size() > 1 && study.baseline != nullptr) {
    text +=
        concat(", compared with ", study.baseline->name,
               ". A letter in brackets: the run did other work than the baseline; the notes say "
               "what");
  }
  text = wrapped_lines(text + ".\n", 2, width);
  for (const Table& table : tables) {
    text += concat("\n", width > 0 ? to_text(table, width) : to_markdown(table));
  }
  for (const Run& run : study.runs) {
    if (run.outcome == RunOutcome::kFinished) continue;
    text += wrapped_lines(concat("\n", run.name, ": ", outcome_name(run.outcome),
                                 run.problem.empty() ? "" : "; ", run.problem, "\n"),
                          2, width);
  }
  return text;
}

// All tables: for two runs side by side first, the certificate last.
std::vector<Table> all_tables(const Study& study, const std::vector<std::string>& wanted) {
  std::vector<Table> tables = make_tables(study, wanted);
  if (!wanted.empty()) return tables;
  const std::vector<Table> pair = side_by_side(study);
  tables.insert(tables.begin(), pair.begin(), pair.end());
  Table certificate = certificate_table(study);
  if (!certificate.rows.empty()) tables.push_back(std::move(certificate));
  return tables;
}

void write(const ReportOptions& o, const Study& study, const std::vector<Table>& tables,
           std::ostream& out, size_t width) {
  if (!o.output_dir.empty()) {
    std::error_code error;
    fs::create_directories(o.output_dir, error);
    check(!error, ErrorCode::kDataLoss, "--output_dir ", o.output_dir, ": ", error.message());
    write_file(o.output_dir + "/report.md", text_of(study, tables));
    const std::vector<Figure> figures = make_figures(study);
    write_file(o.output_dir + "/report.html", to_html(study, figures, tables));
    for (const Figure& figure : figures) {
      write_file(concat(o.output_dir, "/plot_", figure.id, ".svg"), to_svg_file(figure));
    }
    for (const Table& table : tables) {
      const std::string path = concat(o.output_dir, "/table_", table.id);
      write_file(path + ".csv", to_csv(table));
      if (!table.rows.empty()) write_file(path + ".tex", to_latex(table));
    }
    out << "files: " << o.output_dir
        << "/report.html, report.md, plot_<name>.svg, table_<number>.csv and .tex\n";
  }
  if (o.output.ends_with(".csv")) {
    write_file(o.output, to_csv(tables.front()));
  } else if (o.output.ends_with(".tex")) {
    write_file(o.output, to_latex(tables.front()));
  } else if (o.output.ends_with(".html")) {
    write_file(o.output, to_html(study, make_figures(study), tables));
  } else if (!o.output.empty()) {
    write_file(o.output, text_of(study, tables));
  }
  if (o.output.empty() && o.output_dir.empty()) out << text_of(study, tables, width);
}

}  // namespace

int run_report(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
               size_t width) {
  return programs::run_tool("tessera-report", out, err, [&] {
    ReportOptions o;
    if (!parse(arguments, o, out)) return 0;
    const bool known = o.output.ends_with(".html") || o.output.ends_with(".md") ||
                       o.output.ends_with(".csv") || o.output.ends_with(".tex") || o.output.empty();
    check(known, ErrorCode::kInvalidArgument, "--output ", o.output,
          ": end it in .html, .md, .csv or .tex");
    check(!o.watch || o.output.empty(), ErrorCode::kInvalidArgument,
          "--watch writes report.html; leave out --output");
    const std::vector<std::string> wanted = programs::items_of(o.tables);
    if (o.watch) {
      return watch(o.paths, o.output_dir, out, [&](std::vector<Run> runs, int reload_s) {
        const Study study(std::move(runs), o.baseline);
        return to_html(study, make_figures(study), all_tables(study, wanted), reload_s);
      });
    }
    const Study study(read_runs(o.paths), o.baseline);
    const std::vector<Table> tables = all_tables(study, wanted);
    const bool one_table = o.output.ends_with(".csv") || o.output.ends_with(".tex");
    check(!one_table || tables.size() == 1, ErrorCode::kInvalidArgument, "--output ", o.output,
          ": such a file holds one table, these are ", tables.size(),
          "; name it with --tables, or give --output_dir");
    write(o, study, tables, out, width);
    return 0;
  });
}

}  // namespace tessera::report
