// SPDX-License-Identifier: MIT
#pragma once
// Tokenised rows kept in files between runs, one file for each source, tokenizer and options.
#include <cstdint>
#include <functional>
#include <string>

#include "lib/core/hash.h"
#include "tessera/data/token_table.h"

namespace tessera {

// What becomes of a source beside its rows.
struct RowFacts {
  int64_t num_labels = 0;
  std::string notes;  // the caller's, given back as they are
};

using RowTaker = std::function<void(const Example&)>;
// Gives every row to the taker, in order.
using RowMaker = std::function<RowFacts(const RowTaker&)>;

struct TokenisedRows {
  TokenTable rows;
  RowFacts facts;
  bool made = true;  // by this call; false: found in the cache
};

struct TokenCacheEntry {
  std::string directory;  // made where it is missing; empty: rows are made in memory
  std::string name;       // first part of the file's name, for people
  Hash128 key;            // of all that the rows depend on
  Task task = Task::kCausal;
};

// The entry's rows, mapped from its file; made and written first where the file is missing, broken
// or of another key. Of all processes of a host that ask at once one makes them while the others
// wait. A file appears under its name only when it is complete; `say` gets one line for a broken
// file and before waiting. Throws Error(kDataLoss) when the directory cannot be written, and what
// `make` throws.
TokenisedRows tokenised_rows(const TokenCacheEntry& entry, const RowMaker& make,
                             const std::function<void(const std::string&)>& say = {});

}  // namespace tessera
