// SPDX-License-Identifier: MIT
#pragma once
#include <string>

namespace tessera::test {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera::test
