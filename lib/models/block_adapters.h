// SPDX-License-Identifier: MIT
#pragma once
// Low-rank adapters beside the products of a decoder block (tessera/model/lora.h): y += scale B (A
// dropped(x)) for every weight that has one.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lib/models/decoder_block.h"

namespace tessera::detail {

// Which of a block's products: a weight's place among all seven decides what is dropped before its
// adapter.
enum class BlockProduct : int { kQkv = 0, kDense = 3, kUp = 4, kDown = 6 };

class ProductAdapters {
 public:
  ProductAdapters(const ProductWeights& weights, const DecoderBlockOptions& options,
                  BlockProduct product)
      : weights_(weights), options_(options), product_(product) {}

  bool any() const;
  // Through autograd: of the i-th weight, x [..., in] -> what is added to its result; undefined
  // without an adapter.
  at::Tensor forward(const at::Tensor& x, size_t i) const;

  // By hand. x [..., in] -> scale A dropped(x) of all adapters side by side, [rows, their ranks];
  // undefined without any.
  at::Tensor lower(const at::Tensor& x) const;
  // lower()'s result -> what is added to the product's, [..., all outputs], for x [..., in];
  // undefined without any.
  at::Tensor lift(const at::Tensor& lowered, const at::Tensor& x) const;
  void add_lifted(const at::Tensor& y, const at::Tensor& lowered) const;
  // dx [..., in] += what comes back through the adapters; -> the gradient of A dropped(x), as
  // lower()'s result.
  at::Tensor back(const at::Tensor& dy, const at::Tensor& dx) const;
  // To those in g, from what lower() and back() gave. Reads shapes of weights alone.
  void add_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& lowered,
                     const at::Tensor& dlowered, const ProductWeights& g) const;

 private:
  // Calls function(i, adapter, its columns of dlowered or lowered, its columns of y or dy).
  template <typename Function>
  void for_each(const at::Tensor& lowered, const at::Tensor& y, const Function& function) const;
  // Of weights or of their gradients: all A's as one matrix, where they lie side by side and
  // nothing is dropped before them; else undefined.
  at::Tensor joint(const ProductWeights& of) const;
  at::Tensor dropped(const at::Tensor& x, size_t i) const;
  at::Tensor room(const at::Tensor& x) const;

  const ProductWeights& weights_;
  const DecoderBlockOptions& options_;
  BlockProduct product_;
};

}  // namespace tessera::detail
