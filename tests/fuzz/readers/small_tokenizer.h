// SPDX-License-Identifier: MIT
#pragma once
// Byte vocabularies, which every tokenizer.json needs and which would fill every input.
#include <string>

#include "lib/data/bpe.h"
#include "lib/data/unicode.h"
#include "tessera/core/json.h"

namespace tessera::fuzz {

// Members of "vocab" with the ids 0 to 255: the characters of byte-level BPE, or <0x00> to <0xFF>.
inline std::string byte_vocabulary(bool fallback) {
  std::string members;
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    append_utf8(name, character_of_byte(static_cast<unsigned char>(byte)));
    if (fallback) {
      char text[8];
      std::snprintf(text, sizeof(text), "<0x%02X>", byte);
      name = text;
    }
    const std::string quoted = JsonWriter().value(name).text();
    members += (byte > 0 ? "," : "") + quoted + ":" + std::to_string(byte);
  }
  return members;
}

// The text with `"@":0` and `"@@":0` replaced by these members.
inline std::string with_bytes(std::string text) {
  for (const bool fallback : {false, true}) {
    const std::string mark = fallback ? "\"@@\":0" : "\"@\":0";
    if (const size_t at = text.find(mark); at != text.npos) {
      text.replace(at, mark.size(), byte_vocabulary(fallback));
    }
  }
  return text;
}

}  // namespace tessera::fuzz
