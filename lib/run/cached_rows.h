// SPDX-License-Identifier: MIT
#pragma once
// Rows of data files from --cache_dir, and what was said when they were made.
#include <functional>
#include <string>
#include <vector>

#include "lib/data/token_cache.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// What is known of a data file beside its rows.
struct FileFacts {
  metrics::DataRecord record;        // file and role are known before, the rest afterwards
  std::vector<std::string> notices;  // of making the rows
  std::vector<std::string> labels;   // classification
  std::string sha256;                // of the file
  std::string rows_hash;             // RowsHash::text()

  std::string pack() const;  // without file and role
  void unpack(const std::string& notes);
};

// Of its file and of its special tokens.
std::string tokenizer_hash(const Tokenizer& tokenizer);

// Gives every row to the taker; returns the number of classes.
using RowReader = std::function<int64_t(const RowTaker&)>;

// The rows of facts.record.file, and the rest of the facts. `read` makes both where the cache does
// not have them.
TokenTable cached_rows(const Prepared& run, FileFacts& facts, const RowReader& read);

}  // namespace tessera::programs
