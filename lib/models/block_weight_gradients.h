// SPDX-License-Identifier: MIT
#pragma once
// Weight gradients of a hand-written decoder block backward: computed at once, or deferred.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lib/model/tensor_collectives.h"
#include "lib/models/block_adapters.h"
#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

// Inputs for the gradients of a product's weights and adapters.
struct ProductWork {
  BlockProduct product = BlockProduct::kQkv;
  at::Tensor dy, x;              // of y = x W^T
  at::Tensor lowered, dlowered;  // of adapters
};

// Collects the work of one backward. g: accumulates gradients; undefined members are skipped. With
// options.deferred_gradients all work is deferred to it.
class BlockWeightGradients {
 public:
  BlockWeightGradients(const DecoderBlockWeights& w, const DecoderBlockWeights& g,
                       const DecoderBlockOptions& options, int64_t rows)
      : w_(w), g_(g), options_(options), rows_(rows) {}

  // A norm's output in the form that add() needs for the next product.
  Pending enter_norm(const at::Tensor& output) const;
  void add(ProductWork work);
  void add(ops::ColumnSums& sums);
  // Call after the last add().
  void hand_over();

 private:
  bool deferred() const { return options_.deferred_gradients != nullptr; }

  const DecoderBlockWeights &w_, &g_;
  const DecoderBlockOptions& options_;
  int64_t rows_;
  std::vector<ProductWork> products_;
  ops::ColumnSums sums_;
};

}  // namespace tessera::detail
