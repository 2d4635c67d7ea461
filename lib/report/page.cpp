// SPDX-License-Identifier: MIT
#include "lib/report/page.h"

#include <algorithm>
#include <set>

#include "lib/report/page_style.h"
#include "lib/report/verdict.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

std::string notes_html(const std::vector<std::string>& notes) {
  if (notes.empty()) return "";
  std::string html = "<ul class=\"notes\">";
  for (const std::string& note : notes) html += "<li>" + html_escape(note) + "</li>";
  return html + "</ul>\n";
}

// Keeps a unit on its word's line.
std::string title_html(const std::string& title) {
  constexpr size_t kLongestUnit = 3;
  std::string html = html_escape(title);
  const size_t space = html.rfind(' ');
  if (space != html.npos && html.size() - space - 1 <= kLongestUnit) {
    html.replace(space, 1, "&nbsp;");
  }
  return html;
}

std::string table_html(const Table& table) {
  constexpr size_t kMany = 9, kMost = 13;  // columns
  constexpr size_t kWord = 24;
  std::string html = concat("<div class=\"scroll\" tabindex=\"0\"><table",
                            table.columns.size() > kMost   ? " class=\"many most\""
                            : table.columns.size() > kMany ? " class=\"many\""
                                                           : "",
                            "><thead><tr>");
  for (const Column& column : table.columns) {
    html += concat("<th scope=\"col\"", column.is_text ? " class=\"t\"" : "", ">",
                   title_html(column.title), "</th>");
  }
  html += "</tr></thead><tbody>\n";
  for (const Row& row : table.rows) {
    html += row.is_baseline ? "<tr class=\"base\">" : "<tr>";
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const std::string text = html_escape(cell_text(row.cells[i], table.columns[i]));
      if (i == 0) {
        const std::string mark = row.mark.empty() ? "" : "<sup>" + row.mark + "</sup>";
        html +=
            concat("<th scope=\"row\">", text, row.is_baseline ? " (baseline)" : "", mark, "</th>");
      } else {
        // Short words are not broken: titles of numbers wrap first.
        const bool words = table.columns[i].is_text, whole = text.size() <= kWord;
        html += concat("<td", words ? whole ? " class=\"t w\"" : " class=\"t\"" : "", " data-t=\"",
                       html_escape(table.columns[i].title), "\">", text, "</td>");
      }
    }
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  return html + notes_html(table.notes);
}

std::string legend_html(const Figure& figure) {
  if (figure.legend.empty() || (figure.numbered && figure.legend.size() < 2)) return "";
  std::string html = concat("<ul class=\"legend", figure.numbered ? " numbers" : "", "\">");
  for (size_t i = 0; i < figure.legend.size(); ++i) {
    const auto& [name, classes] = figure.legend[i];
    html += "<li><svg viewBox=\"0 0 22 12\" aria-hidden=\"true\">";
    if (classes == "marker") {
      html += "<path class=\"marker\" d=\"M11 0L11 12\"/>";
    } else if (classes.starts_with("line")) {
      html += concat("<path class=\"", classes, "\" d=\"M1 6L21 6\"/>");
    } else {
      html += concat("<rect class=\"", classes, "\" width=\"22\" height=\"12\"/>");
    }
    html += concat("</svg>", figure.numbered ? concat(i + 1, "&nbsp; ") : "", html_escape(name),
                   "</li>");
  }
  return html + "</ul>\n";
}

std::string figure_html(const Figure& figure) {
  return concat("<section id=\"", figure.id, "\"><h2>", html_escape(figure.title), "</h2>\n<p>",
                html_escape(figure.about), "</p>\n<figure class=\"wide\">", figure.wide,
                "</figure>\n<figure class=\"narrow\">", figure.narrow, "</figure>\n",
                legend_html(figure), notes_html(figure.notes),
                "<details><summary>The numbers of this plot</summary>", table_html(figure.table),
                "</details></section>\n");
}

std::string section_html(const Table& table) {
  std::string html = concat("<section id=\"table-", table.id, "\"><h2>",
                            html_escape(full_title(table)), "</h2>\n");
  if (!table.about.empty()) html += "<p>" + html_escape(table.about) + "</p>\n";
  return html + table_html(table) + "</section>\n";
}

std::string joined(const std::set<std::string>& items) {
  std::string text;
  for (const std::string& item : items) {
    if (!item.empty()) text += (text.empty() ? "" : ", ") + item;
  }
  return text;
}

std::set<std::string> all_of(const Study& study, const char* key) {
  std::set<std::string> values;
  for (const Run& run : study.runs) values.insert(run.text(key));
  return values;
}

std::string summary(const Study& study) {
  std::string text = concat(study.runs.size(), study.runs.size() == 1 ? " run" : " runs");
  if (const std::string models = joined(all_of(study, "model")); !models.empty()) {
    text += " of " + models;
  }
  if (const std::string devices = joined(all_of(study, "device")); !devices.empty()) {
    text += " on " + devices;
  }
  text += ".";
  if (study.groups.size() > 1 && study.baseline != nullptr) {
    text += " Compared with " + study.baseline->name + ".";
  }
  return text;
}

std::string verdict_html(const Study& study) {
  std::string rows;
  for (const auto& [title, text] : verdict(study)) {
    rows += concat("<dt>", html_escape(title), "</dt><dd>", html_escape(text), "</dd>");
  }
  if (rows.empty()) return "";
  return "<section id=\"verdict\"><dl>" + rows + "</dl></section>\n";
}

// One line of links: "Verdict | Plots loss rate ... | Tables 1 2 ...".
std::string links_html(const std::vector<Figure>& figures, const std::vector<Table>& tables) {
  const auto link = [](const std::string& id, const std::string& title, std::string text) {
    std::ranges::replace(text, '_', ' ');
    return concat("<a href=\"#", id, "\" title=\"", html_escape(title), "\">", html_escape(text),
                  "</a>");
  };
  std::string links = link("verdict", "What it comes to", "Verdict");
  if (!figures.empty()) links += "<span>Plots</span>";
  for (const Figure& figure : figures) links += link(figure.id, figure.title, figure.id);
  if (!tables.empty()) links += "<span>Tables</span>";
  for (const Table& table : tables) links += link("table-" + table.id, full_title(table), table.id);
  return links;
}

std::string problems_html(const Study& study) {
  std::string html;
  for (const Run& run : study.runs) {
    std::vector<std::string> said = run.anomalies;
    if (run.outcome != RunOutcome::kFinished) {
      said.insert(said.begin(),
                  concat(outcome_name(run.outcome), run.problem.empty() ? "" : "; ", run.problem));
    }
    if (run.times_resumed > 0) {
      said.push_back(concat("went on from a checkpoint ", run.times_resumed,
                            " time(s); its times are those of the last part"));
    }
    constexpr size_t kMost = 5;
    for (size_t i = 0; i < std::min(said.size(), kMost); ++i) {
      html += concat("<li><b>", html_escape(run.name), "</b>: ", html_escape(said[i]), "</li>\n");
    }
    if (said.size() > kMost) {
      html +=
          concat("<li><b>", html_escape(run.name), "</b>: ", said.size() - kMost, " more</li>\n");
    }
  }
  if (html.empty()) return "";
  return "<section id=\"problems\"><h2>What happened in the runs</h2><ul class=\"notes\">" + html +
         "</ul></section>\n";
}

}  // namespace

std::string to_html(const Study& study, const std::vector<Figure>& figures,
                    const std::vector<Table>& tables, int reload_s) {
  const std::string links = links_html(figures, tables);
  std::string html = concat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
      reload_s > 0 ? concat("<meta http-equiv=\"refresh\" content=\"", reload_s, "\">") : "",
      "<title>tessera report</title><style>", kStyle, tables_as_lists(700, "table"),
      tables_as_lists(1200, "table.many"), tables_as_lists(1800, "table.most"),
      "</style></head>\n<body><header><h1>tessera report</h1>",
      "<label class=\"switch\"><input type=\"checkbox\" id=\"theme\">switch light and dark"
      "</label></header>\n<nav aria-label=\"Contents\">",
      links, "</nav>\n<main>", verdict_html(study), "<p>", html_escape(summary(study)),
      study.groups.size() > 1 ? " A letter beside a run: it did other work than the baseline, and "
                                "the note under the table says what."
                              : "",
      "</p>\n");
  for (const Figure& figure : figures) html += figure_html(figure);
  for (const Table& table : tables) html += section_html(table);
  html += problems_html(study);
  html += "</main><footer>Made by tessera-report";
  if (const std::string versions = joined(all_of(study, "tessera_version")); !versions.empty()) {
    html += " from runs of tessera " + html_escape(versions);
  }
  return html + ".</footer></body></html>\n";
}

}  // namespace tessera::report
