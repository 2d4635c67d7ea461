// SPDX-License-Identifier: MIT
#include "backends/common/gradients_aside.h"

#include <ATen/ATen.h>

#include "tessera/core/blank.h"

namespace tessera {

GradientsAside::GradientsAside(Block& block, DeferredGradients* deferred) : deferred_(deferred) {
  if (deferred == nullptr || deferred->promised()) return;
  for (Parameter& parameter : block.parameters()) {
    at::Tensor& handle = parameter.tensor;
    if (!handle.requires_grad()) continue;
    gradients_.emplace_back(handle, handle.grad());
    handle.mutable_grad() = at::zeros_like(handle.grad());
  }
}

GradientsAside::~GradientsAside() {
  for (auto& [handle, gradient] : gradients_) {
    const at::Tensor aside = handle.grad();
    handle.mutable_grad() = gradient;
    deferred_->add([gradient = gradient, aside] {
      settle_blank(gradient);
      gradient.add_(aside);
    });
  }
}

}  // namespace tessera
