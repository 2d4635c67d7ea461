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

// All records of `bytes`; blank lines are passed over. Throws Error(kDataLoss) with file and line
// for invalid UTF-8, quotes that are out of place or never closed, NUL and lone carriage returns,
// and records of unequal length.
std::vector<Record> read_delimited(std::string_view bytes, char delimiter, Quoting quoting,
                                   const std::string& path);

}  // namespace tessera
