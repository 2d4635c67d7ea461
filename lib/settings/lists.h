// SPDX-License-Identifier: MIT
#pragma once
// Values of flags that are lists.
#include <sstream>
#include <string>
#include <vector>

namespace tessera::programs {

// "a,b" -> a and b; "" -> nothing.
inline std::vector<std::string> items_of(const std::string& list, char between = ',') {
  std::vector<std::string> items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, between);) items.push_back(item);
  return items;
}

}  // namespace tessera::programs
