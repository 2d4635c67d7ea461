#pragma once
// Byte-level byte-pair encoding of one piece.
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
  // later counts.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);
  ~Bpe();

  // Appends the tokens of `bytes`; their offsets start at `offset`. O(n log n): the best-ranked,
  // then leftmost pair is merged until none is left.
  void encode(std::string_view bytes, size_t offset, std::vector<Token>& tokens) const;

 private:
  struct Ranks;
  std::array<int32_t, 256> byte_ids_;
  std::unique_ptr<Ranks> ranks_;
};

// GPT-2's bijection between bytes and printable characters, in which vocabularies are written.
uint32_t character_of_byte(unsigned char byte);
// The bytes a token stands for; false when it holds a character outside the bijection.
bool token_bytes(std::string_view token, std::string& bytes);

}  // namespace tessera
