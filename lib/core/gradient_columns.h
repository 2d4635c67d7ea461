// SPDX-License-Identifier: MIT
#pragma once
// Shared state of one micro-batch's blocks: column sums of the gradient between two blocks, and
// seeds in device memory. The later block's first norm has these sums when it writes the gradient;
// the earlier block's last bias needs them.
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>

#include "lib/core/recorded_seeds.h"

namespace tessera {

// For one micro-batch, whose blocks run backward one after another.
class GradientColumns {
 public:
  // Stores the sums for the next block in backward. columns: as in ops::LayerNormGradients;
  // undefined stores nothing. Keeps columns, but not the gradient.
  void hand(const at::Tensor& gradient, const at::Tensor& columns);
  // Returns and clears the sums stored with this gradient; undefined if the gradient was modified
  // since.
  at::Tensor take(const at::Tensor& gradient);

  // seeds that captured work reads; null: not captured
  std::shared_ptr<RecordedSeeds> seeds;

 private:
  // Identity of the gradient. Autograd may pass it on as another tensor of the same storage; a
  // write or freed memory makes it another gradient.
  struct Handed {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* begin;
    int64_t numel;
    uint32_t version;
    at::Tensor columns;

    bool belongs_to(const at::Tensor& gradient) const;
  };
  std::optional<Handed> handed_;
};

}  // namespace tessera
