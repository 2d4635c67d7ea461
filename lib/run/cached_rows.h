// SPDX-License-Identifier: MIT
#pragma once
// Tokenised rows of data files from --cache_dir, with the messages from making them.
#include <functional>
#include <string>
#include <vector>

#include "lib/data/token_cache.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// Facts about a data file beside its rows.
struct FileFacts {
  metrics::DataRecord record;        // file and role are set before, the rest when rows are made
  std::vector<std::string> notices;  // messages from making the rows
  std::vector<std::string> labels;   // classification only
  std::string sha256;                // of the file
  std::string rows_hash;             // RowsHash::text()

  std::string pack() const;  // without file and role
  void unpack(const std::string& notes);
};

// Hash of the tokenizer's file and special tokens.
std::string tokenizer_hash(const Tokenizer& tokenizer);

// Passes every row to the taker; returns the number of classes.
using RowReader = std::function<int64_t(const RowTaker&)>;

// The rows of facts.record.file; fills the other facts. `read` makes both if they are not cached.
TokenTable cached_rows(const Prepared& run, FileFacts& facts, const RowReader& read);

}  // namespace tessera::programs
