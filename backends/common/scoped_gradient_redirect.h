// SPDX-License-Identifier: MIT
#pragma once
// Temporary gradient buffers for a backward that cannot defer weight gradients.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tessera/core/deferred_gradients.h"
#include "tessera/model/block.h"

namespace tessera {

// Phase of a backward pass that defers weight gradients.
constexpr const char* kDeferringPhase = "backward of inputs";

// Scope in which backward accumulates the block's parameter gradients in temporary buffers, because
// the strategy's are in use by other units. `deferred` gets the work that adds them later. No
// effect without `deferred`, or if the block has promised to defer.
class ScopedGradientRedirect {
 public:
  ScopedGradientRedirect(Block& block, DeferredGradients* deferred);
  ScopedGradientRedirect(const ScopedGradientRedirect&) = delete;
  ScopedGradientRedirect& operator=(const ScopedGradientRedirect&) = delete;
  ~ScopedGradientRedirect();

 private:
  DeferredGradients* deferred_;
  // handles and the strategy's gradients
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;
};

}  // namespace tessera
