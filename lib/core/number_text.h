// SPDX-License-Identifier: MIT
#pragma once
// Locale-independent numbers as text: a decimal point, no thousands separators, whatever locale the
// host program has set.
#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace tessera {

// Like printf, in the C locale.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* form, ...);

// The whole text as a number; out of range: infinity or 0.
std::optional<double> parse_number(std::string_view text);
// The number at the start of the text; 0 if there is none.
double leading_number(std::string_view text);

std::string exact_text(double number);  // shortest text that leading_number() reads back exactly

// A stream for `>>` in the C locale.
std::istringstream reader_of(const std::string& text);

// --- Formats of tables for people.
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
