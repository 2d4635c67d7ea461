// SPDX-License-Identifier: MIT
#pragma once
// What every fuzz target of a reader shares. A target is one function, LLVMFuzzerTestOneInput,
// in a file of its own: libFuzzer calls it with bytes of its own making, and the suite with those
// of its corpus.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/error.h"
#include "tests/support/temp_dir.hpp"

namespace tessera::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Cuts the first character off, which says what kind of file the rest is; false: there is none.
inline bool take_kind(std::string_view& text, char& kind) {
  if (text.empty()) return false;
  kind = text.front();
  text.remove_prefix(1);
  return true;
}

// The parts of an input that holds several files, separated by NUL; the last one has the rest.
inline std::vector<std::string> parts_of(std::string_view text, size_t count) {
  std::vector<std::string> parts(count);
  for (size_t i = 0; i + 1 < count; ++i) {
    const size_t end = std::min(text.find('\0'), text.size());
    parts[i] = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  parts.back() = text;
  return parts;
}

// One folder for all inputs of a target; TMPDIR=/dev/shm keeps it off the disk.
inline const TempDir& folder() {
  static const TempDir directory;
  return directory;
}

[[noreturn]] inline void defect(const std::string& what) {
  std::fprintf(stderr, "reader_fuzz: %s\n", what.c_str());
  std::abort();
}

inline void expect(bool condition, const char* what) {
  if (!condition) defect(what);
}

// Whether the reader accepts its input. It may refuse it by an Error with one of these codes, and
// by nothing else.
template <typename Read>
bool accepts(std::initializer_list<ErrorCode> refusals, const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    for (const ErrorCode code : refusals) {
      if (error.code() == code) return false;
    }
    defect(concat("Error(", error_code_name(error.code()), "): ", error.what()));
  } catch (const std::exception& error) {
    defect(concat("no tessera::Error: ", error.what()));
  }
}

}  // namespace tessera::fuzz
