// SPDX-License-Identifier: MIT
#include "lib/run/step_flops.h"

#include <algorithm>
#include <cmath>

namespace tessera::programs {

std::string mfu_formula() {
  return "(6 x weights (frozen: 4) of matrices that a position meets, the head's at supervised "
         "positions only, "
         "+ 6 x layers x width x length of its row, causal attention) x positions/s, padding "
         "counted, / (ranks x dense peak)";
}

double mean_row_length(const std::vector<MicroBatch>& micro_batches) {
  double positions = 0, attended = 0;
  const auto add = [&](double rows, double length) {
    positions += rows * length;
    attended += rows * length * length;
  };
  for (const MicroBatch& batch : micro_batches) {
    for (const int64_t length : batch.packed.lengths) add(1, static_cast<double>(length));
    if (batch.packed.defined()) continue;
    add(static_cast<double>(batch.input_ids.size(0)), static_cast<double>(batch.input_ids.size(1)));
  }
  return positions > 0 ? attended / positions : 0;
}

double step_flops(const ModelSpec& model, double positions, double supervised, double row_length) {
  const double head = model.blocks.back().cost.flops_per_token;
  const double unsupervised = std::max(0.0, positions - supervised);
  return model.flops_per_token(std::llround(row_length)) * positions - head * unsupervised;
}

}  // namespace tessera::programs
