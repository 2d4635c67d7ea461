// SPDX-License-Identifier: MIT
// The reader accepts and rejects the same files as the Python package, except for the stricter
// cases listed here.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <random>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tests/support/mutate.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// Parts of messages for files that Python accepts and this reader rejects;
// docs/reference/formats.md explains each.
constexpr std::string_view kStricter[] = {
    "only spaces may follow",          // Python allows any white space there
    "the header must start with '{'",  // and before the object, although the format forbids it
    "appears twice",                   // Python keeps the last of equal tensor names
    "unknown key",                     // Python ignores it
    "__metadata__ must be an object",  // Python reads null as empty
    "expected an integer of 64 bits",  // Python allows 2^63 and more beside an extent of 0
    "overflows 63 bits",               // likewise for the product
};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// "" if the file is accepted.
std::string refusal(const std::string& file) {
  try {
    const auto size = static_cast<int64_t>(file.size());
    const int64_t length = safetensors_header_length(file.substr(0, 8), size, "x");
    parse_safetensors_header(std::string_view(file).substr(8, static_cast<size_t>(length)), size,
                             "x");
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDataLoss);
    return error.what();
  }
}

bool is_stricter(const std::string& message) {
  return std::ranges::any_of(
      kStricter, [&](std::string_view piece) { return message.find(piece) != std::string::npos; });
}

}  // namespace

TEST_CASE("mutated files are accepted and refused as by the Python package") {
  const char* other = std::getenv("TESSERA_MUTATIONS");
  std::ifstream cases(other != nullptr ? other : TESSERA_TEST_DATA "/mutations.txt");
  std::map<std::string, int> count;
  std::string line;
  while (std::getline(cases, line)) {
    const std::string verdict = line.substr(0, 6), hex = line.substr(7);
    const std::string file = from_hex(hex), message = refusal(file);
    const bool accepted = message.empty();
    if (verdict == "accept" && !accepted && is_stricter(message)) {
      ++count["stricter"];
      continue;
    }
    ++count[verdict];
    if (accepted != (verdict == "accept")) {
      FAIL_CHECK("Python: " << verdict << "; here: " << (accepted ? "accept" : message) << "\n"
                            << file << "\n"
                            << hex);
    }
  }
  std::cout << "compared " << count["accept"] << " accepted and " << count["refuse"]
            << " refused files; stricter in " << count["stricter"] << "\n";
  CHECK(count["accept"] >= 50);
  CHECK(count["refuse"] >= 200);
  CHECK(count["stricter"] >= 1);
}

TEST_CASE("no bytes make the reader crash, or accept a tensor outside the file") {
  std::ifstream cases(TESSERA_TEST_DATA "/mutations.txt");
  std::vector<std::string> corpus;
  for (std::string line; std::getline(cases, line);) corpus.push_back(from_hex(line.substr(7)));
  const std::string_view alphabet = "{}[]:,\"\\0123456789-eE.u";
  std::mt19937_64 random(5);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string file = mutated(corpus[random() % corpus.size()], alphabet, random);
    try {
      const auto size = static_cast<int64_t>(file.size());
      const int64_t length = safetensors_header_length(file.substr(0, 8), size, "x");
      const auto header = parse_safetensors_header(
          std::string_view(file).substr(8, static_cast<size_t>(length)), size, "x");
      for (const auto& entry : header.entries) {
        REQUIRE((entry.begin >= 8 + length && entry.begin <= entry.end && entry.end <= size));
      }
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kDataLoss);
    }
  }
  CHECK(accepted > 0);
}
