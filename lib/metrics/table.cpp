// SPDX-License-Identifier: MIT
#include "lib/metrics/table.h"

#include <algorithm>
#include <cmath>

#include "lib/core/number_text.h"
#include "lib/core/terminal.h"
#include "tessera/core/error.h"
#include "tessera/metrics/event.h"

namespace tessera::metrics {
namespace {

std::string fixed(double number, const Column& column) {
  const char* form = column.sign ? "%+.*f" : "%.*f";
  const std::string text =
      without_negative_zero(printed(form, column.decimals, number), column.sign);
  return column.thousands ? with_thousands(text) : text;
}

// Four significant digits.
std::string rounded(double number, Column column) {
  const double size = std::abs(number);
  if (size == 0) return "0";
  if (size < 1e-4) return printed("%.1e", number);
  const int digits_before = static_cast<int>(std::floor(std::log10(size))) + 1;
  column.decimals = std::clamp(4 - digits_before, 0, 6);
  return fixed(number, column);
}

std::string pipe_escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '|') safe += '\\';
    safe += c == '\n' ? ' ' : c;
  }
  return safe;
}

// Texts of a column for the terminal, the title first.
std::vector<std::string> texts_of(const Table& table, size_t at, bool title) {
  const Column& column = table.columns[at];
  std::vector<std::string> texts;
  if (title) texts.push_back(column.title);
  for (const auto& row : table.rows) {
    texts.push_back(cell_text(row[at], column, table.unknown));
    std::ranges::replace(texts.back(), '\n', ' ');
  }
  return texts;
}

struct AlignedColumn {
  std::vector<std::string> texts;
  size_t width = 0;
  bool left = false;

  std::string line(size_t row) const {
    const std::string& text = texts[row];
    const std::string fill(width - characters(text), ' ');
    return left ? text + fill : fill + text;
  }
};

std::vector<AlignedColumn> aligned(const Table& table, bool titles) {
  std::vector<AlignedColumn> columns;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    AlignedColumn column{.texts = texts_of(table, i, titles),
                         .width = table.columns[i].width,
                         .left = table.columns[i].is_text};
    for (const std::string& text : column.texts) {
      column.width = std::max(column.width, characters(text));
    }
    columns.push_back(std::move(column));
  }
  return columns;
}

}  // namespace

std::string number_text(double number, int decimals) {
  return cell_text({.number = number}, {.decimals = decimals});
}

std::string cell_text(const Cell& cell, const Column& column, const std::string& unknown) {
  if (!cell.text.empty()) return cell.text;
  if (!cell.number) return unknown;
  const double shown = *cell.number * column.scale;
  if (!std::isfinite(shown)) return unknown;
  return column.decimals >= 0 ? fixed(shown, column) : rounded(shown, column);
}

std::string text_table(const Table& table, const TextLayout& layout) {
  const std::vector<AlignedColumn> columns = aligned(table, layout.titles);
  if (columns.empty()) return "";
  std::string text;
  size_t next = 1;
  do {
    const size_t begin = next;
    size_t used = columns[0].width;
    const auto fits = [&] {
      return layout.width == 0 || used + layout.between + columns[next].width <= layout.width;
    };
    while (next < columns.size() && (next == begin || fits())) {
      used += layout.between + columns[next++].width;
    }
    if (begin > 1) text += "\n";
    for (size_t row = 0; row < columns[0].texts.size(); ++row) {
      std::string line = columns[0].line(row);
      for (size_t at = begin; at < next; ++at) {
        line += std::string(layout.between, ' ') + columns[at].line(row);
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
  } while (next < columns.size());
  return text;
}

std::string markdown_table(const Table& table) {
  std::string titles = "|", rule = "|", rows;
  for (const Column& column : table.columns) {
    titles += concat(" ", pipe_escaped(column.title), " |");
    rule += column.is_text ? " --- |" : " ---: |";
  }
  for (const auto& row : table.rows) {
    rows += "|";
    for (size_t i = 0; i < row.size(); ++i) {
      rows += concat(" ", pipe_escaped(cell_text(row[i], table.columns[i], table.unknown)), " |");
    }
    rows += "\n";
  }
  return concat(titles, "\n", rule, "\n", rows);
}

std::string csv_table(const Table& table) {
  std::string text;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    text += (i == 0 ? "" : ",") + table.columns[i].key;
  }
  text += "\n";
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const Cell& cell = row[i];
      text += (i == 0 ? "" : ",") + to_csv(cell.number ? Value(*cell.number) : Value(cell.text));
    }
    text += "\n";
  }
  return text;
}

}  // namespace tessera::metrics
