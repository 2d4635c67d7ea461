// SPDX-License-Identifier: MIT
#pragma once
// Synthetic text of any size: all questions, contexts and lines differ, and words follow Zipf's
// law.
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace tessera::benchmarks {

class SyntheticText {
 public:
  explicit SyntheticText(uint64_t seed = 1);
  std::string words(int64_t count);  // separated by spaces

 private:
  std::string new_word();

  std::mt19937_64 random_;
  std::vector<std::string> common_;
};

// Writes a SQuAD v1.1 file; five questions share a context of 120 words.
void write_squad(std::ostream& out, int64_t questions);
// Writes lines of 120 words up to this size.
void write_lines(std::ostream& out, int64_t bytes);

}  // namespace tessera::benchmarks
