// SPDX-License-Identifier: MIT
#include "lib/data/jinja/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Calls `each` with every code point and its bytes until it returns false.
template <typename Each>
void for_each_point(std::string_view text, Each&& each) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (!each(point.code, text.substr(at, point.length))) return;
    at += point.length;
  }
}

size_t start_of_last(std::string_view text) {
  size_t at = text.size() - 1;
  while (continues(text[at])) --at;
  return at;
}

bool ends_line(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

std::vector<std::string> split_at_space(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string> parts;
  while (true) {
    text = stripped(text, !from_right, from_right);
    if (text.empty()) break;
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.emplace_back(text);
      break;
    }
    size_t begin = 0, end = text.size();
    if (from_right) {
      for (size_t at = text.size(); at > 0;) {
        const size_t start = start_of_last(text.substr(0, at));
        if (is_python_space(code_point_at(text, start).code)) {
          begin = at;
          break;
        }
        at = start;
      }
    } else {
      end = 0;
      for_each_point(text, [&](uint32_t code, std::string_view bytes) {
        if (is_python_space(code)) return false;
        end += bytes.size();
        return true;
      });
    }
    parts.emplace_back(text.substr(begin, end - begin));
    text = from_right ? text.substr(0, begin) : text.substr(end);
  }
  return parts;
}

}  // namespace

size_t length_of(std::string_view text) {
  return text.size() - static_cast<size_t>(std::ranges::count_if(text, continues));
}

size_t byte_of(std::string_view text, size_t index) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (!continues(text[at]) && index-- == 0) return at;
  }
  return text.size();
}

std::string_view stripped(std::string_view text, bool left, bool right,
                          const std::optional<std::string>& characters) {
  const auto goes = [&](std::string_view point) {
    if (characters) return characters->find(point) != std::string::npos;
    return is_python_space(code_point_at(point, 0).code);
  };
  while (left && !text.empty()) {
    const size_t size = code_point_at(text, 0).length;
    if (!goes(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    const size_t start = start_of_last(text);
    if (!goes(text.substr(start))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most, bool from_right) {
  std::vector<std::string> parts;
  if (!separator) {
    parts = split_at_space(text, most, from_right);
  } else {
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      const size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
      if (at == text.npos) break;
      const std::string_view rest = text.substr(at + separator->size());
      parts.emplace_back(from_right ? rest : text.substr(0, at));
      text = from_right ? text.substr(0, at) : rest;
    }
    parts.emplace_back(text);
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    size_t next = at + point.length;
    if (ends_line(point.code)) {
      if (point.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.emplace_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replaced(std::string_view text, std::string_view old, std::string_view by,
                     int64_t most) {
  std::string result;
  size_t from = 0;
  for (; most != 0; --most) {
    // An empty text matches before every code point and at the end.
    const size_t at = text.find(old, from);
    if (at == text.npos) break;
    result += text.substr(from, at - from);
    result += by;
    from = at + old.size();
    if (old.empty()) {
      if (from == text.size()) return result;
      const size_t size = code_point_at(text, from).length;
      result += text.substr(from, size);
      from += size;
    }
  }
  return result += text.substr(from);
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  const CodePoint first = code_point_at(text, 0);
  // The lower case of a sigma depends on the preceding text.
  const std::string lower = python_lower(text);
  const size_t head = python_lower(text.substr(0, first.length)).size();
  return python_title(first.code) + lower.substr(head);
}

std::string titled(std::string_view text) {
  std::string result;
  bool inside = false;
  for_each_point(text, [&](uint32_t code, std::string_view bytes) {
    result += inside ? python_lower(bytes) : python_title(code);
    inside = is_cased(code);
    return true;
  });
  return result;
}

std::string titled_by_jinja(std::string_view text) {
  std::string result;
  const auto add_word = [&](std::string_view word) {
    if (word.empty()) return;
    const size_t head = code_point_at(word, 0).length;
    result += python_upper(word.substr(0, head)) + python_lower(word.substr(head));
  };
  size_t begin = 0, at = 0;
  for_each_point(text, [&](uint32_t code, std::string_view bytes) {
    const bool parts = is_python_space(code) ||
                       (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) !=
                                           std::string_view::npos);
    if (parts) {
      add_word(text.substr(begin, at - begin));
      result += bytes;
      begin = at + bytes.size();
    }
    at += bytes.size();
    return true;
  });
  add_word(text.substr(begin));
  return result;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '\'') {
      result += "&#39;";
    } else if (c == '"') {
      result += "&#34;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string string_repr(std::string_view text) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  std::string result(1, quote);
  for_each_point(text, [&](uint32_t code, std::string_view bytes) {
    char escape[16];
    if (code == static_cast<uint32_t>(quote) || code == '\\') {
      result += '\\';
      result += bytes;
    } else if (code == '\n' || code == '\r' || code == '\t') {
      result += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (is_python_printable(code)) {
      result += bytes;
    } else {
      const char* form = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(escape, sizeof(escape), form, code);
      result += escape;
    }
    return true;
  });
  return result + quote;
}

std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char digits[40];
  const auto written =
      std::to_chars(digits, digits + sizeof(digits), number, std::chars_format::scientific);
  const std::string text(digits, written.ptr);
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;  // Python prints at least two exponent digits
  const auto plain =
      std::to_chars(digits, digits + sizeof(digits), number, std::chars_format::fixed);
  std::string result(digits, plain.ptr);
  return result.find('.') == std::string::npos ? result + ".0" : result;
}

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  std::string digits(stripped(text, true, true));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const auto prefixed = [&](char letter) {
    return digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == letter;
  };
  if ((base == 16 && prefixed('x')) || (base == 8 && prefixed('o')) ||
      (base == 2 && prefixed('b'))) {
    digits.erase(0, 2);
  }
  for (size_t at; (at = digits.find('_', 1)) != std::string::npos;) {
    if (at + 1 == digits.size() || digits[at + 1] == '_') return std::nullopt;
    digits.erase(at, 1);
  }
  if (digits.empty() || digits[0] == '-' || base < 2 || base > 36) return std::nullopt;
  if (negative) digits.insert(0, "-");
  int64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

std::optional<double> parse_float(std::string_view text) {
  std::string_view digits = stripped(text, true, true);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits.starts_with('+')) return std::nullopt;
  double number = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number);
  if (read.ptr != end || read.ec == std::errc::invalid_argument) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    const size_t mark = digits.find_first_of("eE");
    const bool small = mark != digits.npos && digits.substr(mark + 1).starts_with('-');
    number = small ? 0.0 : HUGE_VAL;
    if (digits.starts_with('-')) number = -number;
  }
  return number;
}

}  // namespace tessera::jinja
