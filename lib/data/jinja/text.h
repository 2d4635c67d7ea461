// SPDX-License-Identifier: MIT
#pragma once
// Python's str methods on valid UTF-8; positions and lengths count code points.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

size_t length_of(std::string_view text);
// Byte offset of code point `index`; text.size() beyond the last one.
size_t byte_of(std::string_view text, size_t index);

// Default `characters`: white space.
std::string_view stripped(std::string_view text, bool left, bool right,
                          const std::optional<std::string>& characters = std::nullopt);
// Default separator: runs of white space. most: limit of splits; < 0: none.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends = false);
std::string replaced(std::string_view text, std::string_view old, std::string_view by,
                     int64_t most = -1);

std::string capitalized(std::string_view text);      // str.capitalize()
std::string titled(std::string_view text);           // str.title()
std::string titled_by_jinja(std::string_view text);  // Jinja's filter title
std::string escaped(std::string_view text);          // markupsafe.escape

std::string string_repr(std::string_view text);
std::string float_repr(double number);
std::optional<int64_t> parse_int(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);

}  // namespace tessera::jinja
