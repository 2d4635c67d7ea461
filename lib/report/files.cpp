// SPDX-License-Identifier: MIT
#include "lib/report/files.h"

#include <algorithm>
#include <map>

#include "lib/core/number_text.h"
#include "lib/report/page_style.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

// The page's style rules for drawings with the light theme's colours inserted, since few SVG
// viewers support variables.
std::string drawing_style() {
  const std::string page = kStyle;
  std::string style = "svg{font:12px \"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif}\n";
  const size_t begin = page.find("svg text{"), end = page.find(".legend{");
  style += page.substr(begin, end - begin);
  const std::string theme = page.substr(0, page.find('}'));  // :root, light
  for (size_t at; (at = style.find("var(")) != std::string::npos;) {
    const size_t close = style.find(')', at);
    const std::string name = style.substr(at + 4, close - at - 4) + ":";
    const size_t value = theme.find(name) + name.size();
    style.replace(at, close + 1 - at,
                  theme.substr(value, theme.find_first_of(";}", value) - value));
  }
  return style;
}

// Labels at the ends of lines replace a legend.
bool needs_legend(const Figure& figure) {
  if (figure.legend.empty() || (figure.numbered && figure.legend.size() < 2)) return false;
  const std::string drawn = ">" + html_escape(figure.legend.front().name) + "</text>";
  return !figure.numbered || figure.wide.find(drawn) == std::string::npos;
}

struct Legend {
  std::string drawn;
  double height = 0;
};

Legend legend_of(const Figure& figure, double width, double top) {
  constexpr double kSwatch = 22, kGap = 6, kBetween = 18, kLine = 18, kLeft = 4;
  Legend legend;
  if (!needs_legend(figure)) return legend;
  double x = kLeft, y = top + kLine;
  for (const auto& [name, classes] : figure.legend) {
    const double taken = kSwatch + kGap + text_width(name) + kBetween;
    if (x > kLeft && x + taken > width) {
      x = kLeft;
      y += kLine;
    }
    const double middle = y - 4;
    if (classes == "marker") {
      legend.drawn += concat("<path class=\"marker\" d=\"M", x + kSwatch / 2, " ", middle - 6, "L",
                             x + kSwatch / 2, " ", middle + 6, "\"/>");
    } else if (classes.starts_with("line")) {
      legend.drawn += concat("<path class=\"", classes, "\" d=\"M", x, " ", middle, "L",
                             x + kSwatch, " ", middle, "\"/>");
    } else {
      legend.drawn += concat("<rect class=\"", classes, "\" x=\"", x, "\" y=\"", middle - 6,
                             "\" width=\"", kSwatch, "\" height=\"12\"/>");
    }
    legend.drawn += concat("<text x=\"", x + kSwatch + kGap, "\" y=\"", y, "\">", html_escape(name),
                           "</text>\n");
    x += taken;
  }
  legend.height = y - top + kLine / 2;
  return legend;
}

// True if wider than a text column.
bool is_wide(const Table& table) {
  constexpr size_t kCharacters = 60, kBetween = 2;
  size_t characters = 0;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    size_t most = table.columns[i].title.size();
    for (const Row& row : table.rows) {
      most = std::max(most, cell_text(row.cells[i], table.columns[i]).size());
    }
    characters += most + kBetween;
  }
  return characters > kCharacters;
}

std::string latex_number(const std::string& text) {
  return text.starts_with('-') ? "$-$" + text.substr(1) : text;
}

}  // namespace

std::string to_svg_file(const Figure& figure) {
  const std::string& wide = figure.wide;
  const std::string box = "viewBox=\"0 0 ";
  const size_t size = wide.find(box), head = wide.find('>') + 1, tail = wide.rfind("</svg>");
  check(size < head && tail != std::string::npos, ErrorCode::kInternal, figure.id, ": no drawing");
  double width = 0, height = 0;
  reader_of(wide.substr(size + box.size())) >> width >> height;
  const Legend legend = legend_of(figure, width, height);
  const double all = height + legend.height;
  std::string file =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", all,
             "\" width=\"", width, "\" height=\"", all, "\" role=\"img\">\n<style>",
             drawing_style(), "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             wide.substr(head, tail - head), legend.drawn, "</svg>\n");
  std::erase_if(file, [](unsigned char c) { return c < ' ' && c != '\n' && c != '\t'; });
  return file;
}

std::string latex_escape(const std::string& text) {
  static const std::map<char, const char*> kSafe{{'\\', "\\textbackslash{}"},
                                                 {'{', "\\{"},
                                                 {'}', "\\}"},
                                                 {'$', "\\$"},
                                                 {'&', "\\&"},
                                                 {'#', "\\#"},
                                                 {'%', "\\%"},
                                                 {'_', "\\_"},
                                                 {'~', "\\textasciitilde{}"},
                                                 {'^', "\\textasciicircum{}"},
                                                 {'<', "\\textless{}"},
                                                 {'>', "\\textgreater{}"},
                                                 {'|', "\\textbar{}"},
                                                 {'"', "\\textquotedbl{}"},
                                                 {'[', "{[}"},
                                                 {']', "{]}"},
                                                 {'*', "{*}"},
                                                 {'\n', " "}};
  constexpr const char* kDash = "–";
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto found = kSafe.find(c);
    if (text.compare(i, 3, kDash) == 0) {
      safe += "--";
      i += 2;
    } else if (found != kSafe.end()) {
      safe += found->second;
    } else if (c == '-' && i > 0 && text[i - 1] == '-') {
      safe += "{}-";  // LaTeX would join two into a dash
    } else if (static_cast<unsigned char>(c) >= ' ') {
      safe += c;
    }
  }
  return safe;
}

std::string to_latex(const Table& table) {
  std::string columns, titles, rows, notes;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    columns += i == 0 || table.columns[i].is_text ? 'l' : 'r';
    titles += (i == 0 ? "" : " & ") + latex_escape(table.columns[i].title);
  }
  for (const Row& row : table.rows) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const Cell& cell = row.cells[i];
      std::string text = latex_escape(cell_text(cell, table.columns[i]));
      if (cell.text.empty() && cell.number) text = latex_number(text);
      if (i == 0 && row.is_baseline) text = concat("\\textbf{", text, "}");
      if (i == 0 && !row.mark.empty()) text += concat("\\textsuperscript{", row.mark, "}");
      rows += (i == 0 ? "" : " & ") + text;
    }
    rows += " \\\\\n";
  }
  for (const std::string& note : table.notes) notes += "\\par " + latex_escape(note) + "\n";
  std::string caption = latex_escape(table.title) + ".";
  if (!table.about.empty()) caption += " " + latex_escape(table.about);
  const bool wide = is_wide(table);
  return concat("% \\usepackage{booktabs}, \\usepackage[T1]{fontenc}",
                wide ? ", \\usepackage{graphicx}" : "", "\n\\begin{table}\n\\centering\n\\caption{",
                caption, "}\n\\label{tab:tessera-", table.id, "}\n",
                wide ? "\\resizebox{\\textwidth}{!}{" : "", "\\begin{tabular}{", columns,
                "}\n\\toprule\n", titles, " \\\\\n\\midrule\n", rows,
                "\\bottomrule\n\\end{tabular}", wide ? "}\n" : "\n",
                notes.empty() ? "" : "\\par\\smallskip\\footnotesize\\raggedright\n" + notes,
                "\\end{table}\n");
}

}  // namespace tessera::report
