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
  int64_t line = 0;  // first line, from 1
};

enum class Quoting { kRfc4180, kNone };

// Delimiter of a .csv file by its first line: a comma outside quotation marks, else a semicolon,
// else a tab; a comma by default.
char separator_of(std::string_view bytes);

// All records of `bytes` without blank lines. Throws Error(kDataLoss) with file and line for
// invalid UTF-8, misplaced or unclosed quotes, NUL, lone carriage returns, and records of unequal
// length.
std::vector<Record> read_delimited(std::string_view bytes, char delimiter, Quoting quoting,
                                   const std::string& path);

}  // namespace tessera
