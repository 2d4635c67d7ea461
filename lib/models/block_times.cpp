// SPDX-License-Identifier: MIT
#include "tessera/models/block_times.h"

#include "tessera/core/error.h"

namespace tessera {
namespace {

// 16-bit FLOPs of an H200 (730 TFLOP/s) per number moved (4.2 TB/s).
constexpr double kFlopsPerNumber = 350;
// Numbers moved forward and backward by norms, activations and attention with rows of 512 tokens,
// and by the cross-entropy.
constexpr double kNumbersPerColumn = 180, kNumbersPerLogit = 3;

}  // namespace

std::vector<double> block_times(const ModelSpec& model, double supervised_share) {
  check(supervised_share >= 0 && supervised_share <= 1, ErrorCode::kInvalidArgument,
        "block_times: a share of ", supervised_share, " positions; it lies between 0 and 1");
  std::vector<double> times;
  for (const BlockBuilder& block : model.blocks) times.push_back(block.cost.flops_per_token);
  const size_t blocks = model.block_count();
  if (model.flops_per_token && blocks > 2) {
    // Only attention's operations grow with the sequence: 6 per column and layer.
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
