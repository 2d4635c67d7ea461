// SPDX-License-Identifier: MIT
#pragma once
// Damaged inputs, which readers must reject properly.
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "tessera/core/error.h"
#include "tests/support/test.hpp"

namespace tessera {

// The text after one to three edits: a character replaced or inserted from alphabet, a few
// characters erased, or a piece copied elsewhere.
inline std::string mutated(std::string text, std::string_view alphabet, std::mt19937_64& random) {
  for (uint64_t edits = 1 + random() % 3; edits > 0 && !text.empty(); --edits) {
    const size_t at = random() % text.size();
    const char drawn = alphabet[random() % alphabet.size()];
    switch (random() % 4) {
      case 0:
        text[at] = drawn;
        break;
      case 1:
        text.insert(at, 1, drawn);
        break;
      case 2:
        text.erase(at, 1 + random() % 6);
        break;
      case 3:
        text.insert(at, text.substr(random() % text.size(), random() % 20));
        break;
    }
  }
  return text;
}

// Number of damaged texts that read(text) accepts; it must reject the others with kDataLoss.
template <typename Read>
size_t count_read(const std::string& text, std::string_view alphabet, int rounds, uint64_t seed,
                  const Read& read) {
  std::mt19937_64 random(seed);
  size_t accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string damaged = mutated(text, alphabet, random);
    try {
      read(damaged);
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kDataLoss);
    }
  }
  return accepted;
}

}  // namespace tessera
