#include "lib/data/unicode.h"

#include <algorithm>

#include "tessera/core/file.h"

namespace tessera {
namespace {

bool contains(const CodePointRange* table, size_t size, uint32_t code) {
  const auto* after = std::upper_bound(
      table, table + size, code,
      [](uint32_t wanted, const CodePointRange& range) { return wanted < range.first; });
  return after != table && code <= (after - 1)->last;
}

}  // namespace

bool is_letter(uint32_t code) {
  if (code < 0x80) return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
  return contains(kLetters, kLettersSize, code);
}

bool is_number(uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  return contains(kNumbers, kNumbersSize, code);
}

bool is_white_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  return contains(kWhiteSpace, kWhiteSpaceSize, code);
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(text[at + i])}; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

void append_utf8(std::string& text, uint32_t code) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  while (true) {
    const size_t valid = utf8_valid_prefix(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return text;
    text += "\xEF\xBF\xBD";
    // The ill-formed part is the longest start of a well-formed sequence, at least one byte.
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const size_t most = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    size_t length = 1;
    while (length < std::min(most, bytes.size())) {
      // A start is well-formed when some continuation completes it.
      std::string trial(bytes.substr(0, length + 1));
      bool completes = false;
      for (const char next : {'\x80', '\x90', '\xA0'}) {
        std::string whole = trial;
        while (whole.size() <= most) whole += next;
        completes = completes || utf8_valid_prefix(whole) == whole.size();
      }
      if (!completes) break;
      ++length;
    }
    bytes.remove_prefix(length);
  }
}

}  // namespace tessera
