// SPDX-License-Identifier: MIT
#include <charconv>
#include <cmath>

#include "lib/core/file.h"
#include "lib/core/json_node.h"

namespace tessera {

void JsonWriter::new_line() {
  if (indent_ == 0) return;
  text_ += '\n';
  text_.append(levels_.size() * static_cast<size_t>(indent_), ' ');
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) {
    check(text_.empty(), ErrorCode::kInternal, "JsonWriter: a second value at the top");
    return;
  }
  check(!levels_.back().object, ErrorCode::kInternal, "JsonWriter: a value without key()");
  if (!levels_.back().empty) text_ += ',';
  levels_.back().empty = false;
  new_line();
}

JsonWriter& JsonWriter::key(std::string_view name) {
  check(!levels_.empty() && levels_.back().object && !after_key_, ErrorCode::kInternal,
        "JsonWriter: key(\"", name, "\") outside an object");
  if (!levels_.back().empty) text_ += ',';
  levels_.back().empty = false;
  new_line();
  quoted(name);
  text_ += indent_ == 0 ? ":" : ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  before_value();
  text_ += '{';
  levels_.push_back({true});
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  before_value();
  text_ += '[';
  levels_.push_back({false});
  return *this;
}

void JsonWriter::close(bool object, char bracket) {
  check(!levels_.empty() && levels_.back().object == object && !after_key_, ErrorCode::kInternal,
        "JsonWriter: '", bracket, "' closes nothing");
  const bool empty = levels_.back().empty;
  levels_.pop_back();
  if (!empty) new_line();
  text_ += bracket;
}

JsonWriter& JsonWriter::end_object() {
  close(true, '}');
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  close(false, ']');
  return *this;
}

JsonWriter& JsonWriter::scalar(std::string_view json) {
  before_value();
  text_ += json;
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return null();
  char digits[32];
  char* end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  std::string text(digits, static_cast<size_t>(end - digits));
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";  // keeps it a floating-point number when read back
  return scalar(text);
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  quoted(text);
  return *this;
}

void JsonWriter::quoted(std::string_view text) {
  const size_t valid = utf8_valid_prefix(text);
  check(valid == text.size(), ErrorCode::kInternal, "JsonWriter: byte ", valid,
        " of a string is not valid UTF-8");
  constexpr char kHex[] = "0123456789abcdef";
  text_ += '"';
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const auto escape = [&](unsigned char code) {
      text_ += "\\u00";
      text_ += kHex[code >> 4];
      text_ += kHex[code & 15];
    };
    // Terminals interpret these C1 controls too.
    const bool wide = c == '\xC2' && at + 1 < text.size() && text[at + 1] < '\xA0';
    if (wide) {
      escape(static_cast<unsigned char>(text[++at]));
    } else if (c == '\x7F') {
      escape(0x7F);
    } else if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      text_ += c;
    } else if (c == '\n') {
      text_ += "\\n";
    } else if (c == '\t') {
      text_ += "\\t";
    } else if (c == '\r') {
      text_ += "\\r";
    } else {
      escape(static_cast<unsigned char>(c));
    }
  }
  text_ += '"';
}

JsonWriter& JsonWriter::value(const Json& json) {
  switch (json.type()) {
    case JsonType::kNull:
      return null();
    case JsonType::kBool:
      return value(json.as_bool());
    case JsonType::kNumber:
      return value(json.as_double());
    case JsonType::kString:
      return value(json.as_string());
    case JsonType::kInteger: {
      const auto& number = json.node_->value;
      if (const auto* huge = std::get_if<Json::Node::HugeInteger>(&number)) {
        return scalar(huge->text);
      }
      if (const auto* large = std::get_if<uint64_t>(&number)) return value(*large);
      return value(json.as_int64());
    }
    case JsonType::kArray:
      begin_array();
      for (const Json& item : json.items()) value(item);
      return end_array();
    case JsonType::kObject:
      begin_object();
      for (const auto& [name, member] : json.members()) field(name, member);
      return end_object();
  }
  return *this;
}

const std::string& JsonWriter::text() const {
  check(levels_.empty() && !text_.empty(), ErrorCode::kInternal,
        "JsonWriter: text() before the value is complete");
  return text_;
}

std::string Json::dump(int indent) const { return JsonWriter(indent).value(*this).text(); }

}  // namespace tessera
