// SPDX-License-Identifier: MIT
#pragma once
// Parameters treated as constants in a pass.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "backends/common/attached_model.h"

namespace tessera {

// Scope in which a block's trained parameters need no gradient, for autograd and for hand-written
// blocks.
class FrozenHandles {
 public:
  FrozenHandles(const AttachedModel& model, size_t block, bool freeze) {
    if (!freeze) return;
    for (size_t unit : model.trained_units_of_block[block]) {
      for (const auto& handles : model.units[unit].handles) {
        for (const at::Tensor& handle : handles) handles_.push_back(handle);
      }
    }
    set(false);
  }
  ~FrozenHandles() { set(true); }
  FrozenHandles(const FrozenHandles&) = delete;
  FrozenHandles& operator=(const FrozenHandles&) = delete;

 private:
  void set(bool needs_gradient) const {
    for (const at::Tensor& handle : handles_) handle.set_requires_grad(needs_gradient);
  }
  std::vector<at::Tensor> handles_;
};

}  // namespace tessera
