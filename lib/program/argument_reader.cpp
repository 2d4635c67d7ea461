// SPDX-License-Identifier: MIT
#include "lib/program/argument_reader.h"

#include <limits>

namespace tessera::program {
namespace {

constexpr size_t kMostMembers = size_t{1} << 16;

Item read_value(const std::string& name, const Json& json, const Scope& scope) {
  const auto found = scope.find(name);
  if (found == scope.end()) json.fail(concat("\"", name, "\" is used before it is made"));
  return ValueRef{found->second};
}

Item read_tensor(const Json& json, const Scope& scope) {
  return read_value(json.at("name").as_string(), json, scope);
}

// Infinities and NaN are strings there.
double read_number(const Json& json) {
  if (!json.is_string()) return json.as_double();
  const std::string text = json.as_string();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  json.fail(concat("expected a number, Infinity, -Infinity or NaN, found \"", text, "\""));
}

// A name, or a number of the kind.
Item read_symbolic(const Json& json, const Scope& scope) {
  const auto [kind, value] = kind_of(json);
  if (kind == "as_name") return read_value(value.as_string(), value, scope);
  if (kind == "as_int") return value.as_int64();
  if (kind == "as_bool") return value.as_bool();
  if (kind == "as_float") return read_number(value);
  json.fail(concat("a number is given as \"", kind, "\", which is not known"));
}

Item read_optional_tensor(const Json& json, const Scope& scope) {
  const auto [kind, value] = kind_of(json);
  if (kind == "as_none") return std::monostate();
  if (kind == "as_tensor") return read_tensor(value, scope);
  json.fail(concat("a tensor is given as \"", kind, "\", which is not known"));
}

template <typename Read>
std::vector<Item> read_list(const Json& json, const Read& read) {
  if (json.size() > kMostMembers) json.fail(concat("more than ", kMostMembers, " members"));
  std::vector<Item> items;
  for (const Json& member : json.items()) items.push_back(read(member));
  return items;
}

at::MemoryFormat read_memory_format(const Json& json) {
  switch (json.as_int64()) {
    case 1:
      return at::MemoryFormat::Contiguous;
    case 2:
      return at::MemoryFormat::ChannelsLast;
    case 3:
      return at::MemoryFormat::ChannelsLast3d;
    case 4:
      return at::MemoryFormat::Preserve;
    default:
      json.fail("this memory format is not known; expected 1 to 4");
  }
}

at::Layout read_layout(const Json& json) {
  if (json.as_int64() != 7) json.fail("tensors of programs are strided (7)");
  return at::kStrided;
}

}  // namespace

std::pair<std::string, Json> kind_of(const Json& json) {
  const auto members = json.members();
  if (members.size() != 1) json.fail(concat("expected one kind of value, found ", members.size()));
  return members.front();
}

at::ScalarType read_dtype(const Json& json) {
  switch (json.as_int64()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kChar;
    case 3:
      return at::kShort;
    case 4:
      return at::kInt;
    case 5:
      return at::kLong;
    case 6:
      return at::kHalf;
    case 7:
      return at::kFloat;
    case 8:
      return at::kDouble;
    case 10:
      return at::kComplexFloat;
    case 11:
      return at::kComplexDouble;
    case 12:
      return at::kBool;
    case 13:
      return at::kBFloat16;
    default:
      json.fail("this dtype is not supported in programs");
  }
}

Argument read_argument(const Json& json, const Scope& scope) {
  const auto [kind, value] = kind_of(json);
  const auto named = [&](const Json& member) { return read_tensor(member, scope); };
  const auto optional = [&](const Json& member) { return read_optional_tensor(member, scope); };
  const auto symbolic = [&](const Json& member) { return read_symbolic(member, scope); };
  if (kind == "as_none") return Item(std::monostate());
  if (kind == "as_tensor") return read_tensor(value, scope);
  if (kind == "as_tensors") return read_list(value, named);
  if (kind == "as_optional_tensor") return read_optional_tensor(value, scope);
  if (kind == "as_optional_tensors") return read_list(value, optional);
  if (kind == "as_int") return Item(value.as_int64());
  if (kind == "as_float") return Item(read_number(value));
  if (kind == "as_bool") return Item(value.as_bool());
  if (kind == "as_string") return value.as_string();
  if (kind == "as_ints") {
    return read_list(value, [](const Json& member) { return Item(member.as_int64()); });
  }
  if (kind == "as_floats") {
    return read_list(value, [](const Json& member) { return Item(read_number(member)); });
  }
  if (kind == "as_bools") {
    return read_list(value, [](const Json& member) { return Item(member.as_bool()); });
  }
  if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
    return read_symbolic(value, scope);
  }
  if (kind == "as_sym_ints" || kind == "as_sym_bools" || kind == "as_sym_floats") {
    return read_list(value, symbolic);
  }
  if (kind == "as_scalar_type") return read_dtype(value);
  if (kind == "as_memory_format") return read_memory_format(value);
  if (kind == "as_layout") return read_layout(value);
  if (kind == "as_device") return RankDevice{};
  json.fail(concat("an argument of kind \"", kind, "\" is not supported in programs"));
}

}  // namespace tessera::program
