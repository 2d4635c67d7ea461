// SPDX-License-Identifier: MIT
#pragma once
// Text of any size without repeats: no two questions, contexts or lines are alike, and words follow
// Zipf's law as in a language.
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace tessera::benchmarks {

class SyntheticText {
 public:
  explicit SyntheticText(uint64_t seed = 1);
  std::string words(int64_t count);  // with spaces between them

 private:
  std::string new_word();

  std::mt19937_64 random_;
  std::vector<std::string> common_;
};

// A SQuAD v1.1 file; five questions share a context of 120 words.
void write_squad(std::ostream& out, int64_t questions);
// Lines of 120 words until the file has so many bytes.
void write_lines(std::ostream& out, int64_t bytes);

}  // namespace tessera::benchmarks
