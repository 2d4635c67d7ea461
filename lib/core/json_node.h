// SPDX-License-Identifier: MIT
#pragma once
// Tree behind Json handles.
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/core/json.h"

namespace tessera {

struct Json::Object {
  // Defined where Node is complete.
  Object();
  Object(Object&&) noexcept;
  Object& operator=(Object&&) noexcept;
  ~Object();

  std::vector<std::pair<std::string, Node>> members;  // in file order
  std::vector<uint32_t> by_key;                       // their indices, sorted by key
  const Node* find(std::string_view key) const;
  // Fills by_key. Returns the later of two members with the same key, or null.
  const std::pair<std::string, Node>* index();
};

struct Json::Node {
  struct HugeInteger {  // an integer beyond 64 bits
    double rounded;
    std::string text;
  };
  using Array = std::vector<Node>;
  size_t offset = 0;
  std::variant<std::monostate, bool, int64_t, uint64_t, HugeInteger, double, std::string, Array,
               Object>
      value;
};

struct Json::Document {
  std::string origin;
  ErrorCode error_code;
  std::vector<size_t> line_starts;
  Node root;
  std::string place(size_t offset) const;  // "line 7, byte 93"
};

}  // namespace tessera
