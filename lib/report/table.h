// SPDX-License-Identifier: MIT
#pragma once
// Tables as data, and their output formats.
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::report {

struct Cell {
  std::optional<double> number;  // in the column's base unit
  std::string text;              // shown instead of the rounded number; both empty: unknown
};

// Shown tables have number x scale under the title; CSV has the number under the key.
struct Column {
  std::string key, title;
  double scale = 1;
  int decimals = -1;  // -1: four significant digits
  bool is_text = false;
};

struct Row {
  std::vector<Cell> cells;
  std::string mark;  // letters of the table's notes, if the work differs from the baseline's
  bool is_baseline = false;
};

struct Table {
  std::string id, title;  // "4", "ZeRO stage and offload"
  std::string about;      // description of the numbers
  std::vector<Column> columns;
  std::vector<Row> rows;
  std::vector<std::string> notes;
};

// 1234567.8 as "1,234,568", 0.00123456 as "0.001235". decimals: as in Column.
std::string number_text(double number, int decimals = -1);
std::string cell_text(const Cell& cell, const Column& column);

// "Table 4. ZeRO stage and offload", or only the title for a non-numeric id.
std::string full_title(const Table& table);
std::string to_markdown(const Table& table);
// Aligned columns for a terminal of this width.
std::string to_text(const Table& table, size_t width);
// RFC 4180; the last columns are mark and baseline.
std::string to_csv(const Table& table);

}  // namespace tessera::report
