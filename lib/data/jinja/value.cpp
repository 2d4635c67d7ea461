// SPDX-License-Identifier: MIT
#include "lib/data/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "lib/data/jinja/evaluator.h"
#include "lib/data/jinja/text.h"

namespace tessera::jinja {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Problem(what); }

template <typename T, typename Held>
T* pointed(const Held& held) {
  const auto* pointer = std::get_if<std::shared_ptr<T>>(&held);
  return pointer ? pointer->get() : nullptr;
}

std::string listed(const Values& items, const char* open, const char* close) {
  std::string text = open;
  for (size_t i = 0; i < items.size(); ++i) text += (i > 0 ? ", " : "") + repr(items[i]);
  return text + close;
}

std::string array_text(const Array& array) {
  const Values& items = array.items;
  switch (array.kind) {
    case Array::Kind::kList:
      return listed(items, "[", "]");
    case Array::Kind::kTuple:
      return listed(items, "(", items.size() == 1 ? ",)" : ")");
    case Array::Kind::kKeys:
      return listed(items, "dict_keys([", "])");
    case Array::Kind::kValues:
      return listed(items, "dict_values([", "])");
    case Array::Kind::kItems:
      return listed(items, "dict_items([", "])");
    case Array::Kind::kRange:
      refuse("a range has no text; make a list of it with the filter list");
    case Array::Kind::kOnce:
      refuse("an iterator has no text; make a list of it with the filter list");
  }
  return "";
}

}  // namespace

void Extent::add(const Extent& part) {
  constexpr size_t kMost = size_t{1} << 60;
  depth = std::max(depth, part.depth + 1);
  weight = std::min(kMost, weight + part.weight);
  if (depth > kMaxValueDepth) {
    refuse(concat("lists and mappings lie deeper than ", kMaxValueDepth, " levels"));
  }
}

const Value* Dict::find(const Value& key) const {
  if (!key.is_hashable()) refuse(concat("'", key.type_name(), "' cannot be a key"));
  for (const auto& [known, value] : members) {
    if (known == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [known, value] : members) {
    if (const std::string* name = known.as_string(); name && *name == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (!key.is_hashable()) refuse(concat("'", key.type_name(), "' cannot be a key"));
  extent.add(key.extent());
  extent.add(value.extent());
  for (auto& [known, held] : members) {
    if (known == key) {
      held = std::move(value);
      return;
    }
  }
  members.emplace_back(std::move(key), std::move(value));
}

Value Value::undefined(std::string why) {
  return Undefined{std::make_shared<const std::string>(std::move(why))};
}

Value Value::array(Array::Kind kind, Values items) {
  Extent extent;
  for (const Value& item : items) extent.add(item.extent());
  return std::make_shared<Array>(Array{kind, std::move(items), extent});
}

Value Value::dict(Dict dict) { return std::make_shared<const Dict>(std::move(dict)); }

Value Value::of(const Json& json) {
  switch (json.type()) {
    case JsonType::kNull:
      return {};
    case JsonType::kBool:
      return json.as_bool();
    case JsonType::kInteger:
      return json.as_int64();
    case JsonType::kNumber:
      return json.as_double();
    case JsonType::kString:
      return json.as_string();
    case JsonType::kArray: {
      Values items;
      for (const Json& item : json.items()) items.push_back(of(item));
      return list(std::move(items));
    }
    case JsonType::kObject: {
      Dict dict;  // keys in parsed JSON objects are unique
      for (const auto& [key, item] : json.members()) {
        dict.members.emplace_back(key, of(item));
        dict.extent.add(Value(key).extent());
        dict.extent.add(dict.members.back().second.extent());
      }
      return Value::dict(std::move(dict));
    }
  }
  return {};
}

const std::string* Value::as_string() const {
  const Text* text = as_text();
  return text ? text->bytes.get() : nullptr;
}

Array* Value::as_array() const { return pointed<Array>(held_); }
const Dict* Value::as_dict() const { return pointed<const Dict>(held_); }
Namespace* Value::as_namespace() const { return pointed<Namespace>(held_); }
const Function* Value::as_function() const { return pointed<const Function>(held_); }
Loop* Value::as_loop() const { return pointed<Loop>(held_); }

bool Value::is_whole(int64_t& number) const {
  if (const bool* flag = as_bool()) return number = *flag, true;
  if (const int64_t* whole = as_integer()) return number = *whole, true;
  return false;
}

bool Value::is_number(double& number) const {
  int64_t whole = 0;
  if (is_whole(whole)) return number = static_cast<double>(whole), true;
  if (const double* real = as_float()) return number = *real, true;
  return false;
}

bool Value::is_list() const {
  const Array* array = as_array();
  return array && (array->kind == Array::Kind::kList || array->kind == Array::Kind::kTuple);
}

bool Value::is_once() const {
  const Array* array = as_array();
  return array && array->kind == Array::Kind::kOnce;
}

bool Value::is_hashable() const {
  if (as_dict()) return false;
  const Array* array = as_array();
  if (array == nullptr || array->kind != Array::Kind::kTuple) return !array || is_once();
  return std::ranges::all_of(array->items, &Value::is_hashable);
}

Extent Value::extent() const {
  if (const std::string* text = as_string()) return {1, 1 + text->size() / 16};
  if (const Array* array = as_array()) return array->extent;
  if (const Dict* dict = as_dict()) return dict->extent;
  if (const Function* function = as_function()) return function->extent();
  if (const Loop* loop = as_loop()) return loop->extent();
  return {};
}

bool Value::truth() const {
  if (is_none() || is_undefined()) return false;
  if (double number = 0; is_number(number)) return number != 0;
  if (const std::string* text = as_string()) return !text->empty();
  if (const Array* array = as_array()) {
    return array->kind == Array::Kind::kOnce || !array->items.empty();
  }
  if (const Dict* dict = as_dict()) return !dict->members.empty();
  return true;
}

bool Value::operator==(const Value& other) const {
  int64_t a = 0, b = 0;
  if (is_whole(a) && other.is_whole(b)) return a == b;
  if (double x = 0, y = 0; is_number(x) && other.is_number(y)) return x == y;
  if (held_.index() != other.held_.index()) return false;
  if (const std::string* text = as_string()) return *text == *other.as_string();
  if (const Array* array = as_array()) {
    const Array* right = other.as_array();
    if (array == right) return true;
    return array->kind == right->kind && array->kind != Array::Kind::kOnce &&
           array->items == right->items;
  }
  if (const Dict* dict = as_dict()) {
    const Dict* right = other.as_dict();
    return dict == right || (dict->members.size() == right->members.size() &&
                             std::ranges::all_of(dict->members, [right](const auto& member) {
                               const Value* found = right->find(member.first);
                               return found && *found == member.second;
                             }));
  }
  return as_namespace() == other.as_namespace() && as_function() == other.as_function() &&
         as_loop() == other.as_loop();
}

const char* Value::type_name() const {
  if (is_none()) return "None";
  if (is_undefined()) return "undefined";
  if (as_bool()) return "bool";
  if (as_integer()) return "int";
  if (as_float()) return "float";
  if (as_text()) return "str";
  if (as_dict()) return "dict";
  if (as_namespace()) return "namespace";
  if (as_function()) return "function";
  if (as_loop()) return "loop";
  constexpr const char* kNames[] = {"list",        "tuple",      "range",   "dict_keys",
                                    "dict_values", "dict_items", "iterator"};
  return kNames[static_cast<size_t>(as_array()->kind)];
}

std::string str(const Value& value) {
  if (value.is_undefined()) return "";
  if (const std::string* text = value.as_string()) return *text;
  return repr(value);
}

std::string repr(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is_undefined()) return "Undefined";
  if (const bool* flag = value.as_bool()) return *flag ? "True" : "False";
  if (const int64_t* number = value.as_integer()) return std::to_string(*number);
  if (const double* number = value.as_float()) return float_repr(*number);
  if (const Text* text = value.as_text()) {
    const std::string quoted = string_repr(*text->bytes);
    return text->markup ? "Markup(" + quoted + ")" : quoted;
  }
  if (const Array* array = value.as_array()) return array_text(*array);
  if (const Dict* dict = value.as_dict()) {
    std::string text = "{";
    for (const auto& [key, member] : dict->members) {
      text += (text.size() > 1 ? ", " : "") + repr(key) + ": " + repr(member);
    }
    return text + "}";
  }
  refuse(concat("'", value.type_name(), "' has no text"));
}

int order(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.is_whole(i) && b.is_whole(j)) return i < j ? -1 : i > j;
  if (double x = 0, y = 0; a.is_number(x) && b.is_number(y)) return x < y ? -1 : x > y;
  if (a.as_string() && b.as_string()) {
    // UTF-8 bytes compare like code points
    const int compared = a.as_string()->compare(*b.as_string());
    return compared < 0 ? -1 : compared > 0;
  }
  if (a.is_list() && b.is_list() && a.as_array()->kind == b.as_array()->kind) {
    const Values &left = a.as_array()->items, &right = b.as_array()->items;
    for (size_t k = 0; k < std::min(left.size(), right.size()); ++k) {
      if (!(left[k] == right[k])) return order(left[k], right[k]);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size();
  }
  for (const Value* side : {&a, &b}) {
    if (const Undefined* undefined = side->as_undefined()) refuse(*undefined->why);
  }
  refuse(concat(a.type_name(), " and ", b.type_name(), " have no order"));
}

}  // namespace tessera::jinja
