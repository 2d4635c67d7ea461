// SPDX-License-Identifier: MIT
#include "tessera/models/block_times.h"

#include "tessera/core/error.h"

namespace tessera {
namespace {

// What an H200 computes in 16 bits (730 TFLOP/s) while it moves one number (4.2 TB/s).
constexpr double kFlopsPerNumber = 350;
// Moved forward and backward by norms, activations, attention to rows of 512 tokens, and by the
// cross-entropy.
constexpr double kNumbersPerColumn = 180, kNumbersPerLogit = 3;

}  // namespace

std::vector<double> block_times(const ModelSpec& model, double supervised_share) {
  check(supervised_share >= 0 && supervised_share <= 1, ErrorCode::kInvalidArgument,
        "block_times: a share of ", supervised_share, " positions; it lies between 0 and 1");
  std::vector<double> times;
  for (const BlockBuilder& block : model.blocks) times.push_back(block.cost.flops_per_token);
  const size_t blocks = model.block_count();
  if (model.flops_per_token && blocks > 2) {
    // The only operations that grow with the sequence are attention's, 6 a column and layer.
    const double width = (model.flops_per_token(2) - model.flops_per_token(1)) /
                         (6 * static_cast<double>(blocks - 2));
    for (size_t i = 1; i + 1 < blocks; ++i) times[i] += kFlopsPerNumber * kNumbersPerColumn * width;
    const double logits = times.back() / (6 * width);
    times.back() += kFlopsPerNumber * kNumbersPerLogit * logits;
  }
  if (model.has_loss && !times.empty()) times.back() *= supervised_share;
  return times;
}

}  // namespace tessera
