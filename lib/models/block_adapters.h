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

using AdapterInputs = c10::SmallVector<at::Tensor, 3>;  // by weight

class ProductAdapters {
 public:
  ProductAdapters(const ProductWeights& weights, const DecoderBlockOptions& options,
                  BlockProduct product)
      : weights_(weights), options_(options), product_(product) {}

  bool any() const;
  // Through autograd: of the i-th weight, x [..., in] -> what is added to its result; undefined
  // without an adapter.
  at::Tensor forward(const at::Tensor& x, size_t i) const;

  // By hand. y [..., all outputs] += the same, weight by weight; -> A dropped(x) of each [rows, r].
  AdapterInputs add(const at::Tensor& y, const at::Tensor& x) const;
  // dx [..., in] += what comes back through the adapters, and B's gradients to those in g; -> the
  // gradients of add()'s results.
  AdapterInputs back(const at::Tensor& dy, const at::Tensor& dx, const AdapterInputs& lowered,
                     const ProductWeights& g) const;
  // A's gradients, once x is at hand.
  void finish(const AdapterInputs& dlowered, const at::Tensor& x, const ProductWeights& g) const;

 private:
  at::Tensor dropped(const at::Tensor& x, size_t i) const;

  const ProductWeights& weights_;
  const DecoderBlockOptions& options_;
  BlockProduct product_;
};

}  // namespace tessera::detail
