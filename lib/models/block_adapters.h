// SPDX-License-Identifier: MIT
#pragma once
// LoRA adapters of a decoder block's products (tessera/model/lora.h): y += scale B (A dropout(x))
// for every weight with an adapter.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lib/models/decoder_block.h"

namespace tessera::detail {

// Product of a block, by the index of its first weight among all eight; the index determines the
// adapter's dropout.
enum class BlockProduct : int { kQkv = 0, kDense = 3, kUp = 4, kDown = 6, kSharedGate = 7 };

class ProductAdapters {
 public:
  ProductAdapters(const ProductWeights& weights, const DecoderBlockOptions& options,
                  BlockProduct product)
      : weights_(weights), options_(options), product_(product) {}

  bool any() const;
  // With autograd: the term for weight i's result, from x [..., in]; undefined without an adapter.
  at::Tensor forward(const at::Tensor& x, size_t i) const;

  // Without autograd: scale A dropout(x) of all adapters side by side, [rows, sum of ranks], from x
  // [..., in]; undefined without adapters.
  at::Tensor lower(const at::Tensor& x) const;
  // lower()'s result -> the term for the product's result, [..., all outputs], for x [..., in];
  // undefined without adapters.
  at::Tensor lift(const at::Tensor& lowered, const at::Tensor& x) const;
  void add_lifted(const at::Tensor& y, const at::Tensor& lowered) const;
  // Adds the adapters' part to dx [..., in]. Returns the gradient of A dropout(x), laid out like
  // lower()'s result.
  at::Tensor back(const at::Tensor& dy, const at::Tensor& dx) const;
  // Adds to the adapters' gradients in g, from lower()'s and back()'s results. Reads only shapes of
  // weights.
  void add_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& lowered,
                     const at::Tensor& dlowered, const ProductWeights& g) const;

 private:
  // Calls function(i, adapter, its columns of dlowered or lowered, its columns of y or dy).
  template <typename Function>
  void for_each(const at::Tensor& lowered, const at::Tensor& y, const Function& function) const;
  // All A's (of weights or gradients) as one matrix, if they are adjacent and have no dropout; else
  // undefined.
  at::Tensor joint(const ProductWeights& of) const;
  at::Tensor dropped(const at::Tensor& x, size_t i) const;
  at::Tensor room(const at::Tensor& x) const;

  const ProductWeights& weights_;
  const DecoderBlockOptions& options_;
  BlockProduct product_;
};

}  // namespace tessera::detail
