// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Log-probabilities of continuations under a causal model.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// A continuation of a prompt.
struct Continuation {
  std::vector<int64_t> prompt, ids;  ///< token ids of both
};

/// Log-probability of each continuation's ids given its prompt, summed over ids; 0 without ids. The
/// same on every rank. Collective: every rank of the mesh passes the same continuations.
/// batch_size: rows per rank and batch. Throws Error(kInvalidArgument) for an empty prompt.
std::vector<double> log_probabilities(Strategy& strategy, const DeviceMesh& mesh,
                                      std::span<const Continuation> continuations,
                                      int64_t batch_size);

}  // namespace tessera
