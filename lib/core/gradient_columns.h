// SPDX-License-Identifier: MIT
#pragma once
// What the blocks of one micro-batch share. Column sums of the gradient between two blocks: the
// norm that begins the later block has them at hand when it writes the gradient, and the bias that
// ends the earlier block wants them. Seeds that lie in memory.
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>

#include "lib/core/recorded_seeds.h"

namespace tessera {

// Of one micro-batch, whose blocks run backward one after the other.
class GradientColumns {
 public:
  // For the block whose backward comes next. columns: as ops::LayerNormGradients has them;
  // undefined: nothing is handed on. Keeps columns, but not the gradient.
  void hand(const at::Tensor& gradient, const at::Tensor& columns);
  // What was handed on with this gradient, if the gradient is still as it was; else undefined.
  // Either way nothing is kept.
  at::Tensor take(const at::Tensor& gradient);

  // Where work that is recorded finds what it draws from; null: it is not recorded.
  std::shared_ptr<RecordedSeeds> seeds;

 private:
  // Autograd may pass the gradient on as another tensor of the same memory. It is another gradient
  // once somebody has written to it, or when the memory was freed in between.
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
