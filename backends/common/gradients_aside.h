// SPDX-License-Identifier: MIT
#pragma once
// Backward of a block that defers its weight gradients, but of a micro-batch for which it does not.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tessera/core/deferred_gradients.h"
#include "tessera/model/block.h"

namespace tessera {

// The phase of a backward pass that leaves gradients of weights for later.
constexpr const char* kDeferringPhase = "backward of inputs";

// While it lives, backward adds the gradients of the block's parameters to memory of their own,
// because that of the strategy is not theirs yet; deferred gets the work that brings them there.
// Does nothing without `deferred`, and where the block has promised.
class GradientsAside {
 public:
  GradientsAside(Block& block, DeferredGradients* deferred);
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;
  ~GradientsAside();

 private:
  DeferredGradients* deferred_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // handles and the strategy's memory
};

}  // namespace tessera
