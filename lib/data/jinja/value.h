// SPDX-License-Identifier: MIT
#pragma once
// Template values: the Python types that chat templates use.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/core/json.h"

namespace tessera::jinja {

class Value;
class Function;
class Loop;
using Values = std::vector<Value>;

// An error about values; the evaluator adds template and line.
class Problem : public Error {
 public:
  explicit Problem(const std::string& what) : Error(ErrorCode::kInvalidArgument, what) {}
};

// Limit of nesting: printing, comparing and freeing values recurse.
constexpr size_t kMaxValueDepth = 100;

// Cost of printing or comparing a value. A list that contains one list twice counts it twice.
struct Extent {
  size_t depth = 1;
  size_t weight = 1;             // values, plus one per 16 bytes of text
  void add(const Extent& part);  // throws Problem for too deep nesting
};

struct Undefined {
  std::shared_ptr<const std::string> why;  // reason, for errors
};
struct Text {
  std::shared_ptr<const std::string> bytes;  // valid UTF-8
  bool markup = false;                       // made by `safe` or `escape`: appended text is escaped
};
struct Array {
  enum class Kind { kList, kTuple, kRange, kKeys, kValues, kItems, kOnce };
  Kind kind;
  Values items;
  Extent extent;
  size_t taken = 0;  // for kOnce, Python's iterators: consumed items
};
struct Dict {
  std::vector<std::pair<Value, Value>> members;
  Extent extent;
  const Value* find(const Value& key) const;  // throws Problem for an unhashable key, as set()
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // replaces an equal key
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

class Value {
 public:
  Value() = default;  // None
  Value(Undefined value) : held_(std::move(value)) {}
  Value(bool value) : held_(value) {}
  Value(int64_t value) : held_(value) {}
  Value(double value) : held_(value) {}
  Value(std::string text, bool markup = false)
      : held_(Text{std::make_shared<const std::string>(std::move(text)), markup}) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<Array> array) : held_(std::move(array)) {}
  Value(std::shared_ptr<const Dict> dict) : held_(std::move(dict)) {}
  Value(std::shared_ptr<Namespace> names) : held_(std::move(names)) {}
  Value(std::shared_ptr<const Function> function) : held_(std::move(function)) {}
  Value(std::shared_ptr<Loop> loop) : held_(std::move(loop)) {}
  static Value undefined(std::string why);
  static Value array(Array::Kind kind, Values items);
  static Value list(Values items) { return array(Array::Kind::kList, std::move(items)); }
  static Value dict(Dict dict);
  // Throws for integers beyond 64 bits.
  static Value of(const Json& json);

  bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_undefined() const { return std::holds_alternative<Undefined>(held_); }
  const Undefined* as_undefined() const { return std::get_if<Undefined>(&held_); }
  const bool* as_bool() const { return std::get_if<bool>(&held_); }
  const int64_t* as_integer() const { return std::get_if<int64_t>(&held_); }
  const double* as_float() const { return std::get_if<double>(&held_); }
  const Text* as_text() const { return std::get_if<Text>(&held_); }
  const std::string* as_string() const;
  Array* as_array() const;
  const Dict* as_dict() const;
  Namespace* as_namespace() const;
  const Function* as_function() const;
  Loop* as_loop() const;
  bool is_whole(int64_t& number) const;  // an integer, or a bool as in Python
  bool is_number(double& number) const;  // integer, bool or float
  bool is_list() const;                  // a list or a tuple
  bool is_once() const;                  // an iterator
  bool is_hashable() const;              // may be a key

  Extent extent() const;
  bool truth() const;
  bool operator==(const Value& other) const;
  const char* type_name() const;  // Python's name of the type

 private:
  std::variant<std::monostate, Undefined, bool, int64_t, double, Text, std::shared_ptr<Array>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Function>, std::shared_ptr<Loop>>
      held_;
};

// Python's str() and repr(). Throw Problem for values whose text is an address there.
std::string str(const Value& value);
std::string repr(const Value& value);
// -1, 0 or 1; throws where Python cannot compare the two.
int order(const Value& a, const Value& b);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool lines = false;  // with indentation
  std::string indent = "";
  std::string between = ", ", after_key = ": ";
};
// Same text as json.dumps.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace tessera::jinja
