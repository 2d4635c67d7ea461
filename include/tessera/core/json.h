// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// JSON reader and writer; the reader is strict: limits, no duplicate keys, integers stay integers.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {

/// Limits of Json::parse().
struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;          ///< most bytes of the document
  size_t max_depth = 64;                        ///< most arrays and objects inside each other
  ErrorCode error_code = ErrorCode::kDataLoss;  ///< code of every error, also of the accessors
};

/// Kinds of values; kInteger is written without fraction and exponent.
enum class JsonType { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };
const char* json_type_name(JsonType type);  ///< name in messages, e.g. "integer"

/// A value in a parsed document: a cheap handle that keeps the document alive. Accessors throw an
/// Error like `config.json: n_layer: expected an integer, found string (line 7, byte 93)`.
class Json {
 public:
  /// Parses a document. Errors: exceeded limits, invalid UTF-8, duplicate keys, trailing text,
  /// comments, NaN. origin: the file name in messages.
  static Json parse(std::string_view text, const JsonLimits& limits, const std::string& origin);
  /// Parses a file; its path is the origin.
  static Json parse_file(const std::string& path, const JsonLimits& limits = {});

  JsonType type() const;                                            ///< the type of this value
  bool is_null() const { return type() == JsonType::kNull; }        ///< whether it is null
  bool is_bool() const { return type() == JsonType::kBool; }        ///< whether it is true or false
  bool is_integer() const { return type() == JsonType::kInteger; }  ///< of any size
  bool is_number() const {
    return is_integer() || type() == JsonType::kNumber;
  }  ///< whether it is a number, integers included
  bool is_string() const { return type() == JsonType::kString; }  ///< whether it is a string
  bool is_array() const { return type() == JsonType::kArray; }    ///< whether it is an array
  bool is_object() const { return type() == JsonType::kObject; }  ///< whether it is an object

  bool as_bool() const;  ///< the value; throws unless it is true or false
  ///@{
  /// An integer in the range, written as one (not 1.0, not 1e3).
  int64_t as_int64() const;
  int64_t as_int64(int64_t min, int64_t max) const;
  ///@}
  double as_double() const;       ///< any number
  std::string as_string() const;  ///< the value; throws unless it is a string

  size_t size() const;                                   ///< length of an array or object
  Json at(std::string_view key) const;                   ///< the member; throws if there is none
  std::optional<Json> find(std::string_view key) const;  ///< nullopt when absent or null
  bool contains(std::string_view key) const;             ///< whether present, null or not
  Json at(size_t index) const;      ///< an item of an array; throws if there are fewer
  std::vector<Json> items() const;  ///< all items of an array
  /// All members of an object, in file order.
  std::vector<std::pair<std::string, Json>> members() const;

  ///@{
  /// The member's value, or the fallback when it is absent or null.
  bool get(std::string_view key, bool fallback) const;
  int64_t get(std::string_view key, int64_t fallback) const;
  int64_t get(std::string_view key, int fallback) const { return get(key, int64_t{fallback}); }
  double get(std::string_view key, double fallback) const;
  std::string get(std::string_view key, const std::string& fallback) const;
  std::string get(std::string_view key, const char* fallback) const;
  ///@}

  const std::string& origin() const;  ///< the file name given to parse()
  std::string path() const;           ///< like `model.merges[3]`; empty at the root
  size_t offset() const;              ///< byte offset of the value
  /// Throws an Error that names file, path, line and byte of this value.
  [[noreturn]] void fail(const std::string& message) const;

  std::string dump(int indent = 0) const;  ///< JSON text, as JsonWriter writes it

 private:
  struct Node;
  struct Object;
  struct Document;
  class Builder;
  friend class JsonWriter;
  Json(std::shared_ptr<const Document> document, const Node* node);
  Json child(const Node* node) const { return Json(document_, node); }
  const Object& object() const;
  const Node* lookup(std::string_view key) const;
  [[noreturn]] void wrong_type(const char* expected) const;

  std::shared_ptr<const Document> document_;
  const Node* node_;
};

/// Writer of one JSON value. Doubles take the shortest form that reads back equal; non-finite ones
/// become null. Invalid UTF-8 and calls that do not nest are Error(kInternal).
class JsonWriter {
 public:
  explicit JsonWriter(int indent = 0) : indent_(indent) {}  ///< 0: one line

  ///@{
  /// Opens or closes an object or an array.
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  ///@}
  JsonWriter& key(std::string_view name);        ///< writes the name of the next value of an object
  JsonWriter& null() { return scalar("null"); }  ///< writes null
  ///@{
  /// Writes a value of its JSON type; a vector as an array.
  template <std::integral T>
  JsonWriter& value(T number) {
    if constexpr (std::same_as<T, bool>) {
      return scalar(number ? "true" : "false");
    } else {
      return scalar(std::to_string(number));
    }
  }
  JsonWriter& value(double number);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const Json& json);
  template <typename T>
  JsonWriter& value(const std::vector<T>& items) {
    begin_array();
    for (const auto& item : items) value(item);
    return end_array();
  }
  ///@}
  /// Writes a name and its value: key() and value().
  template <typename T>
  JsonWriter& field(std::string_view name, const T& item) {
    key(name);
    return value(item);
  }
  JsonWriter& scalar(std::string_view json);  ///< writes JSON text unchanged

  const std::string& text() const;  ///< the finished value

 private:
  struct Level {
    bool object;
    bool empty = true;
  };
  void before_value();
  void new_line();
  void close(bool object, char bracket);
  void quoted(std::string_view text);

  int indent_;
  bool after_key_ = false;
  std::vector<Level> levels_;
  std::string text_;
};

}  // namespace tessera
