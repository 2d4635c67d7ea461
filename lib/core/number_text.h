// SPDX-License-Identifier: MIT
#pragma once
// Numbers as text, with a decimal point and without separators of thousands: the host program may
// have set a locale that writes and reads others.
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace tessera {

// As printf writes it.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* form, ...);

// The whole text as a number; beyond the range infinity or 0.
std::optional<double> parse_number(std::string_view text);
// What a number at the text's beginning says; 0: there is none.
double leading_number(std::string_view text);

std::string exact_text(double number);  // the shortest that leading_number() reads as it

// For `>>`.
std::istringstream reader_of(const std::string& text);

}  // namespace tessera
