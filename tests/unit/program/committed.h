// SPDX-License-Identifier: MIT
#pragma once
// The exported programs of tests/data/programs.
#include <string>

#include "tests/support/exported_program.hpp"

namespace tessera::test {

inline std::string program_directory(const std::string& name) {
  return std::string(TESSERA_PROGRAMS) + "/" + name;
}
inline Json reference_of(const std::string& name) {
  return Json::parse_file(program_directory(name) + "/reference.json");
}

}  // namespace tessera::test
