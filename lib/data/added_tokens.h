// SPDX-License-Identifier: MIT
#pragma once
// Tokens matched in the text before anything else, such as </s>.
#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool left_strip = false;   // also consumes the white space before it
  bool right_strip = false;  // also consumes the white space after it
  bool single_word = false;  // no match beside a letter, digit or _
  bool normalized = false;   // matched only in the text between the others, after normalisation
  bool special = false;
};

// Finds tokens from left to right; at the leftmost position the longest one.
class AddedTokenSet {
 public:
  void add(const AddedToken& token);

  struct Part {
    size_t begin, end;
    int32_t id;  // -1: text between tokens
  };
  // Calls `part` for the consecutive non-empty parts of text[begin, end).
  void split(std::string_view text, size_t begin, size_t end,
             const std::function<void(const Part&)>& part) const;

 private:
  // A trie over bytes; node 0 is the root.
  uint64_t edge(uint32_t node, char byte) const {
    return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }
  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_at_{-1};  // by node: index into tokens_ or -1
};

}  // namespace tessera
