// SPDX-License-Identifier: MIT
#include "lib/core/printable.h"

#include <algorithm>
#include <cstdint>

namespace tessera {
namespace {

constexpr char kHex[] = "0123456789abcdef";

uint8_t byte_at(std::string_view text, size_t at) {
  return at < text.size() ? static_cast<uint8_t>(text[at]) : 0;
}

// Number of bytes to escape at `at`; 0: shown as is.
size_t escaped_bytes(std::string_view text, size_t at, uint32_t& code) {
  const uint8_t first = byte_at(text, at), second = byte_at(text, at + 1);
  code = first;
  if (first < 0x20) return first == '\n' || first == '\t' ? 0 : 1;
  if (first == 0x7F) return 1;
  if (first == 0xC2 && second >= 0x80 && second < 0xA0) {
    code = second;
    return 2;
  }
  if (first != 0xE2 || (second != 0x80 && second != 0x81)) return 0;
  const uint8_t third = byte_at(text, at + 2);
  code = 0x2000U + (second - 0x80U) * 64U + (third - 0x80U);
  const bool turns = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return third >= 0x80 && turns ? 3 : 0;
}

void append_escape(std::string& shown, uint32_t code) {
  if (code == '\r') {
    shown += "\\r";
    return;
  }
  shown += code < 0x80 ? "\\x" : "\\u";
  for (int shift = code < 0x80 ? 4 : 12; shift >= 0; shift -= 4) shown += kHex[code >> shift & 15];
}

std::string shown_text(std::string_view text, bool colours) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    uint32_t code = 0;
    const size_t bytes = escaped_bytes(text, at, code);
    if (bytes == 0) {
      shown += text[at++];
      continue;
    }
    const std::string_view rest = text.substr(at);
    const std::string_view kept = !colours                       ? ""
                                  : rest.starts_with(kGreenText) ? kGreenText
                                  : rest.starts_with(kPlainText) ? kPlainText
                                                                 : "";
    kept.empty() ? append_escape(shown, code) : void(shown += kept);
    at += std::max(bytes, kept.size());
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) { return shown_text(text, false); }
std::string printable_with_colours(std::string_view text) { return shown_text(text, true); }

PrintableStream::PrintableStream(std::ostream& stream) : stream_(stream), target_(stream.rdbuf()) {
  stream_.rdbuf(this);
}

PrintableStream::~PrintableStream() {
  const std::ios::iostate state = stream_.rdstate();
  stream_.rdbuf(target_);
  stream_.clear(state);
}

std::streamsize PrintableStream::xsputn(const char* text, std::streamsize size) {
  const std::string shown = printable({text, static_cast<size_t>(size)});
  const auto whole = static_cast<std::streamsize>(shown.size());
  return target_->sputn(shown.data(), whole) == whole ? size : 0;
}

int PrintableStream::overflow(int character) {
  if (character == traits_type::eof()) return traits_type::not_eof(character);
  const char one = traits_type::to_char_type(character);
  return xsputn(&one, 1) == 1 ? character : traits_type::eof();
}

}  // namespace tessera
