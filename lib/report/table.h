// SPDX-License-Identifier: MIT
#pragma once
// Tables as data, and how they are written.
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::report {

struct Cell {
  std::optional<double> number;  // in the column's base unit
  std::string text;              // what is read, if not the rounded number; both empty: unknown
};

// Reading tables: number x scale under the title; CSV: the number itself under the key.
struct Column {
  std::string key, title;
  double scale = 1;
  int decimals = -1;  // -1: four significant digits
  bool is_text = false;
};

struct Row {
  std::vector<Cell> cells;
  std::string mark;  // letters of the table's notes: it did other work than the baseline
  bool is_baseline = false;
};

struct Table {
  std::string id, title;  // "4", "ZeRO stage and offload"
  std::string about;      // what the numbers are
  std::vector<Column> columns;
  std::vector<Row> rows;
  std::vector<std::string> notes;
};

// 1234567.8 as "1,234,568", 0.00123456 as "0.001235"; decimals as in Column.
std::string number_text(double number, int decimals = -1);
std::string cell_text(const Cell& cell, const Column& column);

// "Table 4. ZeRO stage and offload", or the title alone where the id is no number.
std::string full_title(const Table& table);
std::string to_markdown(const Table& table);
// For a terminal of this width: aligned columns.
std::string to_text(const Table& table, size_t width);
// RFC 4180; the last columns say mark and baseline.
std::string to_csv(const Table& table);

}  // namespace tessera::report
