// SPDX-License-Identifier: MIT
#include "tessera/data/token_table.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int32_t kLabelsFollow = -1;

size_t mask_words(size_t tokens) { return (tokens + sizeof(int32_t) - 1) / sizeof(int32_t); }

// The first supervised token if all tokens from there are their own labels; else kLabelsFollow.
int32_t supervised_from(const Example& row) {
  size_t first = 0;
  while (first < row.labels.size() && row.labels[first] == kIgnoredLabel) ++first;
  const bool rest = std::equal(row.labels.begin() + static_cast<ptrdiff_t>(first), row.labels.end(),
                               row.input_ids.begin() + static_cast<ptrdiff_t>(first));
  return rest ? static_cast<int32_t>(first) : kLabelsFollow;
}

}  // namespace

uint64_t words_of(const TokenRowEntry& entry, Task task) {
  const uint64_t tokens = entry.tokens;
  const bool has_labels = task == Task::kCausal && entry.label == kLabelsFollow;
  return tokens * (has_labels ? 2 : 1) + (entry.masked ? mask_words(tokens) : 0);
}

void TokenRowEncoder::add(const Example& row) {
  const size_t tokens = row.input_ids.size(), before = words.size();
  const bool causal = task_ == Task::kCausal, masked = !row.attention_mask.empty();
  check(row.labels.size() == (causal ? tokens : 1) &&
            (!masked || row.attention_mask.size() == tokens) && tokens <= INT32_MAX,
        ErrorCode::kInternal, "a row of ", tokens, " ids has ", row.labels.size(), " labels and ",
        row.attention_mask.size(), " mask values");
  const int32_t label = causal ? supervised_from(row) : row.labels[0];
  words.insert(words.end(), row.input_ids.begin(), row.input_ids.end());
  if (causal && label == kLabelsFollow) {
    words.insert(words.end(), row.labels.begin(), row.labels.end());
  }
  if (masked) {
    const size_t at = words.size();
    words.resize(at + mask_words(tokens));
    std::memcpy(words.data() + at, row.attention_mask.data(), tokens);
  }
  entries.push_back({next_word_, static_cast<uint32_t>(tokens), masked, label});
  next_word_ += words.size() - before;
  longest_ = std::max(longest_, static_cast<int64_t>(tokens));
}

void TokenRowEncoder::clear() {
  words.clear();
  entries.clear();
}

TokenTable::TokenTable(const Dataset& dataset)
    : task_(dataset.task), num_labels_(dataset.num_labels) {
  auto rows = std::make_shared<TokenRowEncoder>(dataset.task);
  for (const Example& example : dataset.examples) rows->add(example);
  entries_ = rows->entries;
  words_ = rows->words.data();
  owner_ = std::move(rows);
}

TokenTable::TokenTable(Task task, int64_t num_labels, std::span<const TokenRowEntry> entries,
                       const int32_t* words, std::shared_ptr<const void> owner)
    : task_(task),
      num_labels_(num_labels),
      entries_(entries),
      words_(words),
      owner_(std::move(owner)) {}

int64_t TokenTable::longest() const {
  uint32_t longest = 0;
  for (const TokenRowEntry& entry : entries_) {
    longest = std::max(longest, static_cast<uint32_t>(entry.tokens));
  }
  return longest;
}

TokenRow TokenTable::row(int64_t index) const {
  const TokenRowEntry& entry = entries_[static_cast<size_t>(index)];
  const size_t tokens = entry.tokens;
  const int32_t* at = words_ + entry.begin;
  TokenRow row{.input_ids = {at, tokens}, .label = entry.label};
  at += tokens;
  if (task_ == Task::kCausal && entry.label == kLabelsFollow) {
    row.labels = {at, tokens};
    at += tokens;
  }
  if (entry.masked) row.attention_mask = {reinterpret_cast<const uint8_t*>(at), tokens};
  return row;
}

TokenTable TokenTable::slice(int64_t begin, int64_t end) const {
  TokenTable part = *this;
  part.entries_ = entries_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return part;
}

}  // namespace tessera
