// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Token table: tokenised rows in one piece of memory, for readers, caches in files and the data
/// loader.
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
  std::span<const int32_t> labels;  ///< causal: one per token, unless `label` describes them
  /// Causal: tokens before this index have no label, later ones are their own. Classification: the
  /// class.
  int32_t label = 0;

  /// Causal: the token's label, as in Example.
  int32_t label_at(size_t token) const {
    if (!labels.empty()) return labels[token];
    return static_cast<int64_t>(token) < label ? static_cast<int32_t>(kIgnoredLabel)
                                               : input_ids[token];
  }
};

/// Layout of a row in memory: ids, labels if label is -1, then the mask if any, padded to whole
/// words.
struct TokenRowEntry {
  uint64_t begin;        ///< index of the first id's word
  uint32_t tokens : 31;  ///< number of ids
  uint32_t masked : 1;   ///< whether a mask follows
  int32_t label;         ///< see TokenRow; -1: explicit labels
};
static_assert(sizeof(TokenRowEntry) == 16);

/// Length of the row in words, from its `begin` on.
uint64_t words_of(const TokenRowEntry& entry, Task task);

/// Encoder of rows: appends each row's words and entry; `begin` counts from the first word ever
/// appended.
class TokenRowEncoder {
 public:
  explicit TokenRowEncoder(Task task) : task_(task) {}  ///< encodes rows of this task
  void add(const Example& example);                     ///< appends a copy of the row

  Task task() const { return task_; }           ///< the task given to the constructor
  int64_t longest() const { return longest_; }  ///< tokens of the longest row ever appended
  /// Words appended since the last clear().
  std::vector<int32_t> words;
  std::vector<TokenRowEntry> entries;  ///< one entry per row, referring to words
  void clear();                        ///< empties words and entries; positions count on

 private:
  Task task_;
  uint64_t next_word_ = 0;
  int64_t longest_ = 0;
};

/// Immutable table of rows; copies share them.
class TokenTable {
 public:
  TokenTable() = default;
  TokenTable(const Dataset& dataset);  ///< copies the examples
  /// Rows in memory that `owner` keeps alive.
  TokenTable(Task task, int64_t num_labels, std::span<const TokenRowEntry> entries,
             const int32_t* words, std::shared_ptr<const void> owner);

  Task task() const { return task_; }                 ///< kind of labels
  int64_t num_labels() const { return num_labels_; }  ///< number of classes (classification)
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }  ///< the number of rows
  int64_t longest() const;            ///< most tokens of a row; reads all entries
  TokenRow row(int64_t index) const;  ///< views valid as long as the table; index from 0
  TokenTable slice(int64_t begin, int64_t end) const;  ///< both within 0 .. size()

 private:
  Task task_ = Task::kCausal;
  int64_t num_labels_ = 0;
  std::span<const TokenRowEntry> entries_;
  const int32_t* words_ = nullptr;
  std::shared_ptr<const void> owner_;
};

}  // namespace tessera
