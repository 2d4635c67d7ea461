// SPDX-License-Identifier: MIT
#pragma once
// Number formats of tables for people.
#include <algorithm>
#include <string>

namespace tessera {

// "1234567.8" as "1,234,567.8".
inline std::string with_thousands(std::string number) {
  const size_t point = std::min(number.find('.'), number.size());
  const size_t first = number.starts_with('-') || number.starts_with('+') ? 1 : 0;
  for (size_t i = point; i > first + 3;) {
    i -= 3;
    number.insert(i, ",");
  }
  return number;
}

// Removes the minus of a printed zero ("-0.0"); with signs it gets a plus.
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
