// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

// "a, b, c".
inline std::string joined(const std::vector<std::string>& items, const char* between = ", ") {
  std::string text;
  for (const std::string& item : items) {
    if (!text.empty()) text += between;
    text += item;
  }
  return text;
}

// "a, b and c".
inline std::string listed(const std::vector<std::string>& items, const char* last = " and ") {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += i + 1 == items.size() ? last : ", ";
    text += items[i];
  }
  return text;
}

}  // namespace tessera
