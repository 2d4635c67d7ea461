// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lib/data/jinja/text.h"
#include "lib/data/jinja/value.h"
#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

std::string quoted(std::string_view text, bool ensure_ascii) {
  std::string result = "\"";
  char escape[16];
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    constexpr std::string_view kNamed = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    const size_t named =
        point.code < 0x80 ? kNamed.find(static_cast<char>(point.code)) : kNamed.npos;
    if (named != kNamed.npos) {
      result += '\\';
      result += kLetters[named];
    } else if (point.code < 0x20 || (ensure_ascii && point.code >= 0x7F && point.code < 0x10000)) {
      std::snprintf(escape, sizeof(escape), "\\u%04x", point.code);
      result += escape;
    } else if (ensure_ascii && point.code >= 0x10000) {
      const uint32_t rest = point.code - 0x10000;
      std::snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD800 + (rest >> 10),
                    0xDC00 + (rest & 0x3FF));
      result += escape;
    } else {
      result += text.substr(at, point.length);
    }
    at += point.length;
  }
  return result + "\"";
}

class JsonText {
 public:
  explicit JsonText(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, size_t level) {
    if (const std::string* text = value.as_string()) {
      out += quoted(*text, style_.ensure_ascii);
    } else if (value.is_list()) {
      const Values& items = value.as_array()->items;
      group('[', ']', items.size(), level, [&](size_t i) { write(items[i], level + 1); });
    } else if (const Dict* dict = value.as_dict()) {
      std::vector<const std::pair<Value, Value>*> members;
      for (const auto& member : dict->members) members.push_back(&member);
      if (style_.sort_keys) {
        std::ranges::stable_sort(
            members, [](const auto* a, const auto* b) { return order(a->first, b->first) < 0; });
      }
      group('{', '}', members.size(), level, [&](size_t i) {
        out += quoted(key(members[i]->first), style_.ensure_ascii) + style_.after_key;
        write(members[i]->second, level + 1);
      });
    } else {
      out += scalar(value);
    }
  }

  std::string out;

 private:
  template <typename Write>
  void group(char open, char close, size_t count, size_t level, const Write& write_one) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += style_.between;
      line(level + 1);
      write_one(i);
    }
    if (count > 0) line(level);
    out += close;
  }

  void line(size_t level) {
    if (!style_.lines) return;
    out += '\n';
    for (size_t i = 0; i < level; ++i) out += style_.indent;
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* flag = value.as_bool()) return *flag ? "true" : "false";
    if (const int64_t* number = value.as_integer()) return std::to_string(*number);
    if (const double* number = value.as_float()) {
      if (std::isnan(*number)) return "NaN";
      if (std::isinf(*number)) return *number < 0 ? "-Infinity" : "Infinity";
      return float_repr(*number);
    }
    if (const Undefined* undefined = value.as_undefined()) {
      throw Problem(*undefined->why + ", so it has no JSON");
    }
    throw Problem(concat("'", value.type_name(), "' has no JSON"));
  }

  static std::string key(const Value& value) {
    if (const std::string* text = value.as_string()) return *text;
    if (value.as_array()) throw Problem("a key of JSON is no list");
    return scalar(value);
  }

  const JsonStyle& style_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonText text(style);
  text.write(value, 0);
  return std::move(text.out);
}

}  // namespace tessera::jinja
