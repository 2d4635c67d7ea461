// SPDX-License-Identifier: MIT
#pragma once
// Tables of numbers and texts, and their output formats.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tessera::metrics {

struct Cell {
  std::optional<double> number;  // in the column's base unit
  std::string text;              // shown instead of the rounded number; both empty: unknown
};

// Shown tables have number x scale under the title; CSV has the number under the key.
struct Column {
  std::string key, title;
  double scale = 1;
  int decimals = -1;      // -1: four significant digits
  bool is_text = false;   // left-aligned
  bool thousands = true;  // 1,234,567 instead of 1234567
  bool sign = false;      // +1.5 instead of 1.5
  size_t width = 0;       // least width as text
};

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells as columns
  std::string unknown = "–";            // of a cell without number and text
};

struct TextLayout {
  size_t width = 0;    // columns beyond it follow below, behind the first one; 0: no limit
  size_t between = 2;  // blanks between columns
  bool titles = true;
};

// 1234567.8 as "1,234,568", 0.00123456 as "0.001235". decimals: as in Column.
std::string number_text(double number, int decimals = -1);
std::string cell_text(const Cell& cell, const Column& column, const std::string& unknown = "–");

// Aligned columns, each line with its end; "" without columns.
std::string text_table(const Table& table, const TextLayout& layout = {});
// Titles, rule and rows of a pipe table.
std::string markdown_table(const Table& table);
// RFC 4180, with keys as titles. Unknown cells are empty.
std::string csv_table(const Table& table);

}  // namespace tessera::metrics
