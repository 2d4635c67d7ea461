// SPDX-License-Identifier: MIT
#pragma once
// Numbers in tables for people.
#include <string>

namespace tessera {

// A printed number that is a negative nothing ("-0.0") loses its minus; with signs it gets a plus.
inline std::string without_negative_zero(std::string text, bool signs = false) {
  const size_t minus = text.find('-');
  if (minus == text.npos) return text;
  const size_t end = text.find_first_not_of("0.", minus + 1);
  const bool digits = end != minus + 1 && minus + 1 < text.size();
  if (!digits || (end != text.npos && text[end] >= '1' && text[end] <= '9')) return text;
  signs ? text.replace(minus, 1, "+") : text.erase(minus, 1);
  return text;
}

}  // namespace tessera
