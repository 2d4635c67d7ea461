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
class GradientsAside {
 public:
  GradientsAside(Block& block, DeferredGradients* deferred);
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;
  ~GradientsAside();

 private:
  DeferredGradients* deferred_;
  // handles and the strategy's gradients
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;
};

}  // namespace tessera
