// SPDX-License-Identifier: MIT
#pragma once
// The weight gradients of a decoder block whose backward is written by hand: made at once, or kept
// for later.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lib/model/tensor_collectives.h"
#include "lib/models/block_adapters.h"
#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

// What the gradients of a product's weights, and of its adapters, are made of.
struct ProductWork {
  BlockProduct product = BlockProduct::kQkv;
  at::Tensor dy, x;              // of y = x W^T
  at::Tensor lowered, dlowered;  // of adapters
};

// Of one backward. g: where gradients are added; undefined members are not wanted. Where options
// have deferred_gradients, these get all work.
class BlockWeightGradients {
 public:
  BlockWeightGradients(const DecoderBlockWeights& w, const DecoderBlockWeights& g,
                       const DecoderBlockOptions& options, int64_t rows)
      : w_(w), g_(g), options_(options), rows_(rows) {}

  // A norm's output as add() wants it for the product behind it.
  Pending enter_norm(const at::Tensor& output) const;
  void add(ProductWork work);
  void add(ops::ColumnSums& sums);
  // After the last add().
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
