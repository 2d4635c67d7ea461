// SPDX-License-Identifier: MIT
#include "lib/data/added_tokens.h"

#include <algorithm>

#include "lib/data/unicode.h"

namespace tessera {
namespace {

// Start of the character before `at`, but not before `least`.
size_t before(std::string_view text, size_t at, size_t least) {
  do {
    --at;
  } while (at > least && (text[at] & 0xC0) == 0x80);
  return at;
}

}  // namespace

void AddedTokenSet::add(const AddedToken& token) {
  uint32_t node = 0;
  for (const char byte : token.content) {
    const auto [found, added] =
        edges_.try_emplace(edge(node, byte), static_cast<uint32_t>(token_at_.size()));
    if (added) token_at_.push_back(-1);
    node = found->second;
  }
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

void AddedTokenSet::split(std::string_view text, size_t begin, size_t end,
                          const std::function<void(const Part&)>& part) const {
  size_t done = begin, at = begin;
  while (at < end && !tokens_.empty()) {
    const AddedToken* longest = nullptr;
    uint32_t node = 0;
    for (size_t i = at; i < end; ++i) {
      const auto next = edges_.find(edge(node, text[i]));
      if (next == edges_.end()) break;
      node = next->second;
      if (token_at_[node] >= 0) longest = &tokens_[static_cast<size_t>(token_at_[node])];
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    size_t first = at, last = at + longest->content.size();
    at = last;
    if (longest->single_word &&
        ((first > begin && is_word_point(code_point_at(text, before(text, first, begin)).code)) ||
         (last < end && is_word_point(code_point_at(text, last).code)))) {
      continue;
    }
    if (longest->left_strip) {
      while (first > done) {
        const size_t previous = before(text, first, done);
        if (!is_white_space(code_point_at(text, previous).code)) break;
        first = previous;
      }
    }
    if (longest->right_strip) {
      while (last < end && is_white_space(code_point_at(text, last).code)) {
        last += code_point_at(text, last).length;
      }
    }
    if (done < first) part({done, first, -1});
    // A token may begin in the white space that the previous one consumed.
    part({std::max(first, done), std::max(last, done), longest->id});
    done = last;
  }
  if (done < end) part({done, end, -1});
}

}  // namespace tessera
