// SPDX-License-Identifier: MIT
#pragma once
// Tables of runs: rows with marks, titles and notes.
#include <string>
#include <vector>

#include "lib/metrics/table.h"

namespace tessera::report {

using metrics::Cell;
using metrics::cell_text;
using metrics::Column;
using metrics::number_text;

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

// "Table 4. ZeRO stage and offload", or only the title for a non-numeric id.
std::string full_title(const Table& table);
std::string to_markdown(const Table& table);
// Aligned columns for a terminal of this width.
std::string to_text(const Table& table, size_t width);
// RFC 4180; the last columns are mark and baseline.
std::string to_csv(const Table& table);

}  // namespace tessera::report
