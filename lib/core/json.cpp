// SPDX-License-Identifier: MIT
#include "tessera/core/json.h"

#include <algorithm>
#include <limits>

#include "lib/core/json_node.h"

namespace tessera {

const char* json_type_name(JsonType type) {
  constexpr const char* kNames[] = {"null",   "bool",  "integer", "number",
                                    "string", "array", "object"};
  return kNames[static_cast<size_t>(type)];
}

Json::Object::Object() = default;
Json::Object::Object(Object&&) noexcept = default;
Json::Object& Json::Object::operator=(Object&&) noexcept = default;
Json::Object::~Object() = default;

const Json::Node* Json::Object::find(std::string_view key) const {
  const auto found = std::lower_bound(
      by_key.begin(), by_key.end(), key,
      [this](uint32_t index, std::string_view wanted) { return members[index].first < wanted; });
  if (found == by_key.end() || members[*found].first != key) return nullptr;
  return &members[*found].second;
}

const std::pair<std::string, Json::Node>* Json::Object::index() {
  by_key.resize(members.size());
  for (uint32_t i = 0; i < by_key.size(); ++i) by_key[i] = i;
  std::sort(by_key.begin(), by_key.end(), [this](uint32_t a, uint32_t b) {
    const int order = members[a].first.compare(members[b].first);
    return order != 0 ? order < 0 : a < b;
  });
  for (size_t i = 1; i < by_key.size(); ++i) {
    if (members[by_key[i - 1]].first == members[by_key[i]].first) return &members[by_key[i]];
  }
  return nullptr;
}

std::string Json::Document::place(size_t offset) const {
  const auto after = std::upper_bound(line_starts.begin(), line_starts.end(), offset);
  return concat("line ", after - line_starts.begin(), ", byte ", offset);
}

Json::Json(std::shared_ptr<const Document> document, const Node* node)
    : document_(std::move(document)), node_(node) {}

JsonType Json::type() const {
  constexpr JsonType kTypes[] = {JsonType::kNull,    JsonType::kBool,    JsonType::kInteger,
                                 JsonType::kInteger, JsonType::kInteger, JsonType::kNumber,
                                 JsonType::kString,  JsonType::kArray,   JsonType::kObject};
  return kTypes[node_->value.index()];
}

bool Json::as_bool() const {
  if (const bool* flag = std::get_if<bool>(&node_->value)) return *flag;
  wrong_type("true or false");
}

int64_t Json::as_int64() const {
  if (const int64_t* number = std::get_if<int64_t>(&node_->value)) return *number;
  if (is_integer()) fail("expected an integer of 64 bits, found " + dump());
  wrong_type("an integer");
}

int64_t Json::as_int64(int64_t min, int64_t max) const {
  const int64_t number = as_int64();
  if (number < min || number > max) {
    fail(concat("expected an integer from ", min, " to ", max, ", found ", number));
  }
  return number;
}

double Json::as_double() const {
  if (const double* number = std::get_if<double>(&node_->value)) return *number;
  if (const int64_t* number = std::get_if<int64_t>(&node_->value)) return double(*number);
  if (const uint64_t* number = std::get_if<uint64_t>(&node_->value)) return double(*number);
  if (const auto* huge = std::get_if<Node::HugeInteger>(&node_->value)) return huge->rounded;
  wrong_type("a number");
}

std::string Json::as_string() const {
  if (const std::string* text = std::get_if<std::string>(&node_->value)) return *text;
  wrong_type("a string");
}

size_t Json::size() const {
  if (const auto* array = std::get_if<Node::Array>(&node_->value)) return array->size();
  if (const auto* object = std::get_if<Object>(&node_->value)) return object->members.size();
  wrong_type("an array or object");
}

const Json::Object& Json::object() const {
  if (const auto* object = std::get_if<Object>(&node_->value)) return *object;
  wrong_type("an object");
}

const Json::Node* Json::lookup(std::string_view key) const { return object().find(key); }

Json Json::at(std::string_view key) const {
  const Node* node = lookup(key);
  if (node == nullptr) fail(concat("has no \"", key, "\""));
  return child(node);
}

std::optional<Json> Json::find(std::string_view key) const {
  const Node* node = lookup(key);
  if (node == nullptr || child(node).is_null()) return std::nullopt;
  return child(node);
}

bool Json::contains(std::string_view key) const { return lookup(key) != nullptr; }

Json Json::at(size_t index) const {
  const auto* array = std::get_if<Node::Array>(&node_->value);
  if (array == nullptr) wrong_type("an array");
  if (index >= array->size()) {
    fail(concat("has ", array->size(), " elements, element ", index, " was wanted"));
  }
  return child(&(*array)[index]);
}

std::vector<Json> Json::items() const {
  const auto* array = std::get_if<Node::Array>(&node_->value);
  if (array == nullptr) wrong_type("an array");
  std::vector<Json> result;
  result.reserve(array->size());
  for (const Node& node : *array) result.push_back(child(&node));
  return result;
}

std::vector<std::pair<std::string, Json>> Json::members() const {
  std::vector<std::pair<std::string, Json>> result;
  result.reserve(object().members.size());
  for (const auto& [key, node] : object().members) result.emplace_back(key, child(&node));
  return result;
}

bool Json::get(std::string_view key, bool fallback) const {
  const auto found = find(key);
  return found ? found->as_bool() : fallback;
}

int64_t Json::get(std::string_view key, int64_t fallback) const {
  const auto found = find(key);
  return found ? found->as_int64() : fallback;
}

double Json::get(std::string_view key, double fallback) const {
  const auto found = find(key);
  return found ? found->as_double() : fallback;
}

std::string Json::get(std::string_view key, const std::string& fallback) const {
  const auto found = find(key);
  return found ? found->as_string() : fallback;
}

std::string Json::get(std::string_view key, const char* fallback) const {
  return get(key, std::string(fallback));
}

const std::string& Json::origin() const { return document_->origin; }

size_t Json::offset() const { return node_->offset; }

std::string Json::path() const {
  // Path of a node, for errors only. Walks down by offsets: a child starts after its parent and
  // before its next sibling.
  std::string path;
  const Node* node = &document_->root;
  while (node != node_) {
    const auto starts_after = [](size_t offset, const auto& child) {
      if constexpr (std::is_same_v<std::decay_t<decltype(child)>, Node>) {
        return offset < child.offset;
      } else {
        return offset < child.second.offset;
      }
    };
    if (const auto* array = std::get_if<Node::Array>(&node->value)) {
      const auto next = std::upper_bound(array->begin(), array->end(), node_->offset, starts_after);
      node = &*(next - 1);
      path += concat("[", next - 1 - array->begin(), "]");
    } else {
      const auto& members = std::get<Object>(node->value).members;
      const auto next =
          std::upper_bound(members.begin(), members.end(), node_->offset, starts_after);
      node = &(next - 1)->second;
      path += concat(path.empty() ? "" : ".", (next - 1)->first);
    }
  }
  return path;
}

void Json::fail(const std::string& message) const {
  const std::string path = this->path();
  tessera::fail(document_->error_code, document_->origin, ": ", path, path.empty() ? "" : ": ",
                message, " (", document_->place(offset()), ")");
}

void Json::wrong_type(const char* expected) const {
  const bool show = type() == JsonType::kNumber;
  fail(concat("expected ", expected, ", found ", json_type_name(type()), show ? " " + dump() : ""));
}

}  // namespace tessera
