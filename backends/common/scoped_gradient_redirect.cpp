// SPDX-License-Identifier: MIT
#include "backends/common/scoped_gradient_redirect.h"

#include <ATen/ATen.h>

#include "tessera/core/lazy_zero.h"

namespace tessera {

ScopedGradientRedirect::ScopedGradientRedirect(Block& block, DeferredGradients* deferred)
    : deferred_(deferred) {
  if (deferred == nullptr || deferred->promised()) return;
  for (Parameter& parameter : block.parameters()) {
    at::Tensor& handle = parameter.tensor;
    if (!handle.requires_grad()) continue;
    gradients_.emplace_back(handle, handle.grad());
    handle.mutable_grad() = at::zeros_like(handle.grad());
  }
}

ScopedGradientRedirect::~ScopedGradientRedirect() {
  for (auto& [handle, gradient] : gradients_) {
    const at::Tensor aside = handle.grad();
    handle.mutable_grad() = gradient;
    deferred_->add([gradient = gradient, aside] {
      materialize_lazy_zero(gradient);
      gradient.add_(aside);
    });
  }
}

}  // namespace tessera
