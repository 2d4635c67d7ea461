// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How likely a causal model finds texts behind prompts.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// A text behind a prompt.
struct Continuation {
  std::vector<int64_t> prompt, ids;  ///< token ids of both
};

/// Logarithm of the probability of each one's ids behind its prompt, all of them together; 0
/// without ids. The same on every rank. Collective: every rank of the mesh gives the same
/// continuations. batch_size: rows that a rank works on together. Throws Error(kInvalidArgument)
/// for an empty prompt.
std::vector<double> log_probabilities(Strategy& strategy, const DeviceMesh& mesh,
                                      std::span<const Continuation> continuations,
                                      int64_t batch_size);

}  // namespace tessera
