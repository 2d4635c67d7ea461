// SPDX-License-Identifier: MIT
#include "lib/report/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lib/core/number_text.h"
#include "lib/core/printed.h"
#include "lib/core/terminal.h"
#include "tessera/core/error.h"
#include "tessera/metrics/event.h"

namespace tessera::report {
namespace {

constexpr const char* kUnknown = "–";

std::string fixed(double number, int decimals) {
  return without_negative_zero(printed("%.*f", decimals, number));
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '|') safe += '\\';
    safe += c == '\n' ? ' ' : c;
  }
  return safe;
}

std::string marked_name(const Row& row, const std::string& name) {
  std::string text = row.is_baseline ? "**" + name + "** (baseline)" : name;
  if (!row.mark.empty()) text += " [" + row.mark + "]";
  return text;
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

std::string number_text(double number, int decimals) {
  if (!std::isfinite(number)) return kUnknown;
  const double size = std::abs(number);
  if (decimals >= 0) return with_thousands(fixed(number, decimals));
  if (size == 0) return "0";
  if (size < 1e-4) return printed("%.1e", number);
  const int digits_before = static_cast<int>(std::floor(std::log10(size))) + 1;
  return with_thousands(fixed(number, std::clamp(4 - digits_before, 0, 6)));
}

std::string cell_text(const Cell& cell, const Column& column) {
  if (!cell.text.empty()) return cell.text;
  return cell.number ? number_text(*cell.number * column.scale, column.decimals) : kUnknown;
}

std::string full_title(const Table& table) {
  const bool numbered = !table.id.empty() && table.id[0] >= '0' && table.id[0] <= '9';
  return numbered ? concat("Table ", table.id, ". ", table.title) : table.title;
}

std::string to_markdown(const Table& table) {
  std::string text = "## " + full_title(table) + "\n\n";
  if (!table.about.empty()) text += table.about + "\n\n";
  std::string line = "|", rule = "|";
  for (const Column& column : table.columns) {
    line += concat(" ", escaped(column.title), " |");
    rule += column.is_text ? " --- |" : " ---: |";
  }
  if (!table.rows.empty()) text += concat(line, "\n", rule, "\n");
  for (const Row& row : table.rows) {
    line = "|";
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const std::string cell = escaped(cell_text(row.cells[i], table.columns[i]));
      line += concat(" ", i == 0 ? marked_name(row, cell) : cell, " |");
    }
    text += line + "\n";
  }
  if (!table.notes.empty() && !table.rows.empty()) text += "\n";
  for (const std::string& note : table.notes) text += "- " + note + "\n";
  return text;
}

std::string to_text(const Table& table, size_t width) {
  std::string text = full_title(table) + "\n";
  if (!table.about.empty()) text += wrapped_lines(table.about + "\n", 0, width);
  std::vector<TableColumn> columns;
  for (size_t i = 0; i < table.columns.size() && !table.rows.empty(); ++i) {
    const Column& column = table.columns[i];
    columns.push_back({{column.title}, column.is_text || i == 0});
    for (const Row& row : table.rows) {
      std::string cell = cell_text(row.cells[i], column);
      std::ranges::replace(cell, '\n', ' ');
      if (i == 0 && row.is_baseline) cell += " (baseline)";
      if (i == 0 && !row.mark.empty()) cell += " [" + row.mark + "]";
      columns.back().cells.push_back(cell);
    }
  }
  text += "\n" + aligned_table(columns, width);
  for (const std::string& note : table.notes) text += wrapped_lines("- " + note + "\n", 2, width);
  return text;
}

std::string to_csv(const Table& table) {
  using metrics::Value;
  std::string text;
  for (const Column& column : table.columns) text += column.key + ",";
  text += "is_baseline,unlike_baseline\n";
  for (const Row& row : table.rows) {
    for (const Cell& cell : row.cells) {
      text += cell.number         ? metrics::to_csv(Value(*cell.number))
              : cell.text.empty() ? ""
                                  : metrics::to_csv(Value(cell.text));
      text += ",";
    }
    text += concat(row.is_baseline ? "true" : "false", ",",
                   metrics::to_csv(Value(note_of(table, row.mark))), "\n");
  }
  return text;
}

}  // namespace tessera::report
