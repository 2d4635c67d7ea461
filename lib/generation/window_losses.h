// SPDX-License-Identifier: MIT
#pragma once
// Losses of a causal model on windows of token sequences.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

// Tokens of one forward pass.
struct TokenWindow {
  size_t begin = 0, length = 0;
  size_t first_target = 0;  // position in the window, from 1, of the first predicted token

  size_t targets() const { return length - first_target; }
};

// Sum of each window's losses (natural logarithm), equal on every rank. Windows are ranges of
// `ids`. Collective, with the same arguments on every rank of the mesh. Batches of windows of
// similar length, padded to the longest of a pass, are divided over the data ranks.
std::vector<double> window_losses(Strategy& strategy, const DeviceMesh& mesh,
                                  std::span<const int64_t> ids,
                                  std::span<const TokenWindow> windows, int64_t batch_size);

}  // namespace tessera
