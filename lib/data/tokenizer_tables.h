// SPDX-License-Identifier: MIT
#pragma once
// Tables of a loaded tokenizer.
#include <absl/container/flat_hash_map.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/data/added_tokens.h"
#include "lib/data/bpe.h"
#include "lib/data/metaspace.h"
#include "lib/data/normalizer.h"
#include "lib/data/pre_tokenizer.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

struct Tokenizer::Tables {
  std::string origin;
  Normalizer normalizer;
  bool byte_level = true;                             // false: characters, with bytes as fallback
  PreTokenizer pre_tokenizer = PreTokenizer::kBloom;  // byte-level only
  std::optional<Metaspace> metaspace;  // character-level only; empty: the text is one piece
  bool strip_first_space = false;      // when decoding to characters
  std::unique_ptr<Bpe> bpe;
  absl::flat_hash_map<std::string, int32_t> ids;  // by content as in the file
  std::vector<std::string> bytes;                 // by id: decoded bytes
  std::vector<char> special;                      // by id
  std::vector<char> is_byte;                      // by id: a fallback byte
  absl::flat_hash_map<std::string, int32_t>
      whole_pieces;  // ignore_merges: pieces that are tokens themselves
  AddedTokenSet added, added_normalized;
  std::vector<int32_t> prefix, suffix;  // of the template
  std::optional<int32_t> bos, eos, pad, unk;
};

}  // namespace tessera
