// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Perplexity of a text under a causal model.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// Windows of a text.
struct PerplexityOptions {
  int64_t window = 1024;   ///< tokens per window
  int64_t stride = 512;    ///< distance between the starts of windows, at most window
  int64_t batch_size = 1;  ///< windows per rank and batch
};

/// Result of perplexity().
struct Perplexity {
  /// exp of the mean of the windows' mean losses, weighted by a window's new tokens minus one, as
  /// in transformers' guide "Perplexity of fixed-length models".
  double value = 0;
  double per_token = 0;          ///< exp of the mean loss over all predicted tokens
  int64_t predicted_tokens = 0;  ///< number of predicted tokens
  int64_t windows = 0;           ///< number of windows
};

/// Perplexity of a text. Each token is predicted in the first window that contains it, from at
/// least window - stride earlier tokens except at the text's start. The same on every rank.
/// Collective: every rank of the mesh passes the same ids and options. Windows are divided over the
/// data ranks. Throws Error(kInvalidArgument) for fewer than two tokens and for invalid sizes.
Perplexity perplexity(Strategy& strategy, const DeviceMesh& mesh, std::span<const int64_t> ids,
                      const PerplexityOptions& options);

}  // namespace tessera
