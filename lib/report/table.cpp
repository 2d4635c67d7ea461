// SPDX-License-Identifier: MIT
#include "lib/report/table.h"

#include <functional>

#include "lib/core/terminal.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

// The text of a row's first cell, before its mark.
using Name = std::function<std::string(const Row&, const std::string&)>;

metrics::Table named(const Table& table, const Name& name) {
  metrics::Table plain{.columns = table.columns};
  for (const Row& row : table.rows) {
    plain.rows.push_back(row.cells);
    Cell& first = plain.rows.back().front();
    first.text = name(row, cell_text(first, table.columns.front()));
    if (!row.mark.empty()) first.text += " [" + row.mark + "]";
  }
  return plain;
}

std::string note_of(const Table& table, const std::string& mark) {
  std::string text;
  for (const std::string& note : table.notes) {
    const size_t colon = note.find(": ");
    if (colon == std::string::npos || mark.empty()) continue;
    if (("," + mark + ",").find("," + note.substr(0, colon) + ",") == std::string::npos) continue;
    text += (text.empty() ? "" : "; ") + note.substr(colon + 2);
  }
  return text;
}

}  // namespace

std::string full_title(const Table& table) {
  const bool numbered = !table.id.empty() && table.id[0] >= '0' && table.id[0] <= '9';
  return numbered ? concat("Table ", table.id, ". ", table.title) : table.title;
}

std::string to_markdown(const Table& table) {
  std::string text = "## " + full_title(table) + "\n\n";
  if (!table.about.empty()) text += table.about + "\n\n";
  if (!table.rows.empty()) {
    text += metrics::markdown_table(named(table, [](const Row& row, const std::string& name) {
      return row.is_baseline ? "**" + name + "** (baseline)" : name;
    }));
  }
  if (!table.notes.empty() && !table.rows.empty()) text += "\n";
  for (const std::string& note : table.notes) text += "- " + note + "\n";
  return text;
}

std::string to_text(const Table& table, size_t width) {
  std::string text = full_title(table) + "\n";
  if (!table.about.empty()) text += wrapped_lines(table.about + "\n", 0, width);
  text += "\n";
  if (!table.rows.empty()) {
    metrics::Table plain = named(table, [](const Row& row, const std::string& name) {
      return row.is_baseline ? name + " (baseline)" : name;
    });
    plain.columns.front().is_text = true;
    text += metrics::text_table(plain, {.width = width});
  }
  for (const std::string& note : table.notes) text += wrapped_lines("- " + note + "\n", 2, width);
  return text;
}

std::string to_csv(const Table& table) {
  metrics::Table plain{.columns = table.columns};
  plain.columns.push_back({.key = "is_baseline"});
  plain.columns.push_back({.key = "unlike_baseline"});
  for (const Row& row : table.rows) {
    plain.rows.push_back(row.cells);
    plain.rows.back().push_back({.text = row.is_baseline ? "true" : "false"});
    plain.rows.back().push_back({.text = note_of(table, row.mark)});
  }
  return metrics::csv_table(plain);
}

}  // namespace tessera::report
