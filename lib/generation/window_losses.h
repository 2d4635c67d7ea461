// SPDX-License-Identifier: MIT
#pragma once
// What a causal model loses on pieces of token sequences.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

// Tokens that the model sees at once.
struct TokenWindow {
  size_t begin = 0, length = 0;
  size_t first_target = 0;  // place in the window, from 1, of the first token that is predicted

  size_t targets() const { return length - first_target; }
};

// The sum of every window's losses (natural logarithm), the same on every rank. Windows are of
// `ids`. Collective: every rank of the mesh gives the same. Batches of neighbours, padded to their
// pass's longest, are spread over the data ranks.
std::vector<double> window_losses(Strategy& strategy, const DeviceMesh& mesh,
                                  std::span<const int64_t> ids,
                                  std::span<const TokenWindow> windows, int64_t batch_size);

}  // namespace tessera
