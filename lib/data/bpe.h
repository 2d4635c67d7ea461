// SPDX-License-Identifier: MIT
#pragma once
// Byte-pair encoding of one piece, from bytes or from characters.
#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera {

class Bpe {
 public:
  struct Merge {
    int32_t left, right, result;
  };
  // `byte_ids` are the tokens of the single bytes; merges in order of rank, of two equal ones the
  // later counts. Merging starts from characters that are in `characters` (by code point), and from
  // bytes elsewhere.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges,
      absl::flat_hash_map<uint32_t, int32_t> characters = {});
  ~Bpe();

  // Appends the tokens of `text`; their offsets start at `offset`. O(n log n): the best-ranked,
  // then leftmost pair is merged until none is left.
  void encode(std::string_view text, size_t offset, std::vector<Token>& tokens) const;

 private:
  struct Ranks;
  struct Symbol;
  std::vector<Symbol> symbols_of(std::string_view text) const;

  std::array<int32_t, 256> byte_ids_;
  std::unique_ptr<Ranks> ranks_;
  absl::flat_hash_map<uint32_t, int32_t> characters_;
};

// GPT-2's bijection between bytes and printable characters, in which vocabularies are written.
uint32_t character_of_byte(unsigned char byte);
// The bytes a token stands for; false when it holds a character outside the bijection.
bool token_bytes(std::string_view token, std::string& bytes);

}  // namespace tessera
