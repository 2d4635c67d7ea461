// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How well a causal model predicts a text.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// How a text is cut into windows.
struct PerplexityOptions {
  int64_t window = 1024;   ///< tokens that the model sees at once
  int64_t stride = 512;    ///< from one window's begin to the next, at most window
  int64_t batch_size = 1;  ///< windows that a rank works on together
};

/// What perplexity() returns.
struct Perplexity {
  /// exp of the mean over windows of the window's mean loss, weighted by its new tokens less one,
  /// as in the guide "Perplexity of fixed-length models" of transformers.
  double value = 0;
  double per_token = 0;          ///< exp of the mean loss of all predicted tokens
  int64_t predicted_tokens = 0;  ///< tokens of the text that were predicted
  int64_t windows = 0;           ///< windows that the text was cut into
};

/// Of the text's tokens, each predicted from those before it in the first window in which it is
/// new: at least window - stride of them but for the text's beginning. The same on every rank.
/// Collective: every rank of the mesh gives the same ids and options. Windows are spread over the
/// data ranks. Throws Error(kInvalidArgument) for fewer than two tokens and for sizes that make no
/// sense.
Perplexity perplexity(Strategy& strategy, const DeviceMesh& mesh, std::span<const int64_t> ids,
                      const PerplexityOptions& options);

}  // namespace tessera
