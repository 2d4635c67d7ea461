// SPDX-License-Identifier: MIT
#pragma once
// List of blocks in a case, such as "L6.P.D".
#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/testing/fuzz.h"

namespace tessera::testing {

struct BlockToken {
  char kind = 'L';
  int64_t width = 0;
  bool frozen = false, first_frozen = false;
};

// Throws Error(kInvalidArgument) for letters not in `kinds`.
std::vector<BlockToken> parse_blocks(const std::string& text, const std::string& kinds);
std::string to_text(const std::vector<BlockToken>& blocks);
// Cases with one block removed, unfrozen, or narrower.
std::vector<FuzzCase> smaller_blocks(const FuzzCase& fuzz_case, const std::string& kinds);

// True if the case's model has batch norms; its weights are then fp32.
bool has_running_statistics(const FuzzCase& fuzz_case);

// {sum of the cross-entropy, correct predictions} for logits [..., classes].
at::Tensor loss_and_correct(const at::Tensor& logits, const at::Tensor& labels);

// Rows of floating-point inputs [rows, columns]; about a quarter of the labels are ignored.
MicroBatch labelled_rows(int64_t rows, int64_t columns, int64_t classes, uint64_t seed);
// Draws small values; those of a vector are not centred at zero.
void draw_parameter(const at::Tensor& parameter, at::Generator& generator);

FuzzFamily toy_family();
FuzzFamily modules_family();
FuzzFamily chain_family();

inline int64_t draw_from(std::mt19937_64& random, const std::vector<int64_t>& values) {
  return values[random() % values.size()];
}
inline bool chance(std::mt19937_64& random, int percent) {
  return static_cast<int>(random() % 100) < percent;
}

}  // namespace tessera::testing
