// SPDX-License-Identifier: MIT
#pragma once
// Byte-pair encoding of one piece, starting from bytes or characters.
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
  // byte_ids: tokens of single bytes. merges: in order of rank; of equal ones the later counts.
  // Merging starts from characters in `characters` (by code point), elsewhere from bytes.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges,
      absl::flat_hash_map<uint32_t, int32_t> characters = {});
  ~Bpe();

  // Appends the tokens of `text`, with offsets from `offset` on. Merges the best-ranked, then
  // leftmost pair until none is left; O(n log n).
  void encode(std::string_view text, size_t offset, std::vector<Token>& tokens) const;

 private:
  struct Ranks;
  struct Symbol;
  std::vector<Symbol> symbols_of(std::string_view text) const;

  std::array<int32_t, 256> byte_ids_;
  std::unique_ptr<Ranks> ranks_;
  absl::flat_hash_map<uint32_t, int32_t> characters_;
};

// GPT-2's bijection of bytes and printable characters, used in vocabularies.
uint32_t character_of_byte(unsigned char byte);
// Bytes of a token; false if it contains a character outside the bijection.
bool token_bytes(std::string_view token, std::string& bytes);

}  // namespace tessera
