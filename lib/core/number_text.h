// SPDX-License-Identifier: MIT
#pragma once
// Locale-independent numbers as text: a decimal point, no thousands separators, whatever locale the
// host program has set.
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

}  // namespace tessera
