// SPDX-License-Identifier: MIT
#pragma once
// Paths of the shipped samples and this folder's fixtures.
#include <string>

namespace tessera {

inline std::string source_path(const std::string& path) {
  return std::string(TESSERA_SOURCE_DIR) + "/" + path;
}
inline std::string sample_tokenizer() { return source_path("examples/data/tokenizer"); }

}  // namespace tessera
