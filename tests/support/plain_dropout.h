// SPDX-License-Identifier: MIT
#pragma once
// Dropout of the plain models, element by element.
#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>
#include <optional>
#include <vector>

#include "lib/core/hash.h"
#include "tessera/model/block.h"

namespace tessera::testing {

// Zero with this probability, else the inverse of the complement. Element i uses number first + i
// of Philox 4x32-10 for the seed.
inline at::Tensor drop_factors(const at::Tensor& like, double probability, uint64_t seed,
                               int64_t first) {
  const double kept = 1 / (1 - probability);
  std::vector<double> values;
  for (int64_t i = first; i < first + like.numel(); ++i) {
    at::Philox4_32 numbers(seed, static_cast<uint64_t>(i) / 4);
    for (int64_t skipped = 0; skipped < i % 4; ++skipped) numbers();
    values.push_back(numbers() < std::floor(probability * 0x1p32) ? 0.0 : kept);
  }
  return at::tensor(values, at::kDouble).view(like.sizes()).to(like.scalar_type());
}

// Dropout of one block.
class Drops {
 public:
  Drops(const BlockContext& context, uint64_t model_seed, size_t block)
      : training_(context.training),
        seed_(block_seed(context.seed, block_seed(model_seed, block))) {}
  uint64_t seed(size_t number) const { return block_seed(seed_, number); }
  // x [..., n] for all tokens
  at::Tensor tokens(const at::Tensor& x, double probability, size_t number) const {
    if (!training_ || probability == 0) return x;
    return x * drop_factors(x, probability, seed(number), 0);
  }
  // x [batch, heads, n, n], of a packed row or of a whole micro-batch
  at::Tensor probabilities(const at::Tensor& x, std::optional<int64_t> row,
                           double probability) const {
    if (!training_ || probability == 0) return x;
    const auto mixed = [](uint64_t with, int64_t number) {
      return xxh3_64(&number, sizeof(number), with);
    };
    const uint64_t seed = row ? mixed(this->seed(1), *row) : this->seed(1);
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < x.size(1); ++head) {
      heads.push_back(drop_factors(x.select(1, head), probability, mixed(seed, head), 0));
    }
    return x * at::stack(heads, 1);
  }

 private:
  bool training_;
  uint64_t seed_;
};

}  // namespace tessera::testing
