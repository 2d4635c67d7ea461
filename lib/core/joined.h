// SPDX-License-Identifier: MIT
#pragma once
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

}  // namespace tessera
