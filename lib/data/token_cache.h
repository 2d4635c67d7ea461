// SPDX-License-Identifier: MIT
#pragma once
// Cache of tokenised rows between runs: one file for each source, tokenizer and options.
#include <cstdint>
#include <functional>
#include <string>

#include "lib/core/hash.h"
#include "tessera/data/token_table.h"

namespace tessera {

// Facts about a source beside its rows.
struct RowFacts {
  int64_t num_labels = 0;
  std::string notes;  // the caller's text, returned unchanged
};

using RowTaker = std::function<void(const Example&)>;
// Passes every row to the taker, in order.
using RowMaker = std::function<RowFacts(const RowTaker&)>;

struct TokenisedRows {
  TokenTable rows;
  RowFacts facts;
  bool made = true;  // by this call; false: from the cache
};

struct TokenCacheEntry {
  std::string directory;  // created if missing; empty: rows stay in memory
  std::string name;       // first part of the file name, for people
  Hash128 key;            // hash of everything that the rows depend on
  Task task = Task::kCausal;
};

// The entry's rows, memory-mapped from its file. Makes the file first if it is missing, broken or
// has another key. One process of a host makes it while the others wait. A file appears under its
// name only when complete. `say` gets one line for a broken file and before waiting. Throws
// Error(kDataLoss) when the directory is not writable, and rethrows from `make`.
TokenisedRows tokenised_rows(const TokenCacheEntry& entry, const RowMaker& make,
                             const std::function<void(const std::string&)>& say = {});

}  // namespace tessera
