// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tokenised rows in one piece of memory: what readers fill, caches hold in files and the data
/// loader serves.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/data/dataset.h"

namespace tessera {

/// One row, as views into its table.
struct TokenRow {
  std::span<const int32_t> input_ids;       ///< tokens, without padding
  std::span<const uint8_t> attention_mask;  ///< one per token; empty when all are real
  std::span<const int32_t> labels;          ///< causal: one per token where they are not as below
  /// Causal: tokens before it have no label, the others themselves. Classification: the class.
  int32_t label = 0;

  /// Causal: as in Example.
  int32_t label_at(size_t token) const {
    if (!labels.empty()) return labels[token];
    return static_cast<int64_t>(token) < label ? static_cast<int32_t>(kIgnoredLabel)
                                               : input_ids[token];
  }
};

/// How a row lies in memory: its ids, then labels if label is -1, then the mask if it has one,
/// filled to whole words.
struct TokenRowEntry {
  uint64_t begin;        ///< word of the first id
  uint32_t tokens : 31;  ///< number of ids
  uint32_t masked : 1;   ///< whether a mask follows
  int32_t label;         ///< see TokenRow; -1: labels follow
};
static_assert(sizeof(TokenRowEntry) == 16);

/// From the row's `begin` on.
uint64_t words_of(const TokenRowEntry& entry, Task task);

/// Appends a row's words and entry; `begin` counts from the first word ever appended.
class TokenRowEncoder {
 public:
  explicit TokenRowEncoder(Task task) : task_(task) {}  ///< encodes rows of this task
  void add(const Example& example);                     ///< appends the row; the example is copied

  Task task() const { return task_; }           ///< the task given to the constructor
  int64_t longest() const { return longest_; }  ///< tokens of the longest row ever appended
  /// What was appended since the last clear().
  std::vector<int32_t> words;
  std::vector<TokenRowEntry> entries;  ///< one entry a row, for words
  void clear();                        ///< forgets words and entries; what comes next counts on

 private:
  Task task_;
  uint64_t next_word_ = 0;
  int64_t longest_ = 0;
};

/// Immutable; a copy shares the rows.
class TokenTable {
 public:
  TokenTable() = default;
  TokenTable(const Dataset& dataset);  ///< copies the examples
  /// Rows in memory that `owner` keeps.
  TokenTable(Task task, int64_t num_labels, std::span<const TokenRowEntry> entries,
             const int32_t* words, std::shared_ptr<const void> owner);

  Task task() const { return task_; }                                     ///< what labels are
  int64_t num_labels() const { return num_labels_; }                      ///< classification
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }  ///< the number of rows
  int64_t longest() const;            ///< tokens; reads all entries
  TokenRow row(int64_t index) const;  ///< views that hold as long as the table does; index from 0
  TokenTable slice(int64_t begin, int64_t end) const;  ///< both within 0 .. size()

 private:
  Task task_ = Task::kCausal;
  int64_t num_labels_ = 0;
  std::span<const TokenRowEntry> entries_;
  const int32_t* words_ = nullptr;
  std::shared_ptr<const void> owner_;
};

}  // namespace tessera
