// SPDX-License-Identifier: MIT
#pragma once
// Records of CSV and TSV files.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct Record {
  std::vector<std::string> fields;
  int64_t line = 0;  // where it starts, from 1
};

enum class Quoting { kRfc4180, kNone };

// What separates the fields of a .csv file, by its first line: a comma where one stands outside
// quotation marks, else a semicolon, else a tab; a comma where none does.
char separator_of(std::string_view bytes);

// All records of `bytes`; blank lines are passed over. Throws Error(kDataLoss) with file and line
// for invalid UTF-8, quotes that are out of place or never closed, NUL and lone carriage returns,
// and records of unequal length.
std::vector<Record> read_delimited(std::string_view bytes, char delimiter, Quoting quoting,
                                   const std::string& path);

}  // namespace tessera
