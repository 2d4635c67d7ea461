// SPDX-License-Identifier: MIT
#pragma once
// LoRA adapters of the experts' matrices (tessera/model/lora.h): the rows of expert e get scale B_e
// (A_e dropout(x)). Without autograd.
#include <ATen/core/Tensor.h>

#include <vector>

#include "lib/models/block_adapters.h"
#include "lib/models/decoder_block.h"
#include "lib/ops/routing.h"

namespace tessera::detail {

class ExpertAdapters {
 public:
  using Weights = c10::SmallVector<LoraWeights, 2>;
  // product: kUp or kDown; adapters: of ExpertWeights. tokens: sizes of the tokens before the
  // hidden dimension, for dropout. Keeps references.
  ExpertAdapters(const Weights& adapters, BlockProduct product, const DecoderBlockOptions& options,
                 const ops::ExpertOrder& order, at::IntArrayRef tokens)
      : adapters_(adapters), product_(product), options_(options), order_(order), tokens_(tokens) {}

  bool any() const;
  // scale A dropout(rows), [adapters, rows, r], of rows [rows, in]; undefined without adapters. An
  // adapter that is not there has no values.
  at::Tensor lower(const at::Tensor& rows) const;
  // Adds B lowered to y [rows, out].
  void add_lifted(const at::Tensor& y, const at::Tensor& lowered) const;
  // Adds the adapters' part to dx [rows, in]. Returns the gradient of A dropout(rows), laid out
  // like lower()'s result.
  at::Tensor back(const at::Tensor& dy, const at::Tensor& dx) const;
  // Adds to the gradients in g, whose undefined members are skipped, from lower()'s and back()'s
  // results. The adapters' own values are not read.
  void add_gradients(const at::Tensor& dy, const at::Tensor& rows, const at::Tensor& lowered,
                     const at::Tensor& dlowered, const Weights& g) const;

 private:
  // Calls function(index, adapter, its columns of y).
  template <typename Function>
  void for_each(const at::Tensor& y, const Function& function) const;
  at::Tensor room(const at::Tensor& rows) const;
  at::Tensor dropped(const at::Tensor& rows, size_t i) const;

  const Weights& adapters_;
  BlockProduct product_;
  const DecoderBlockOptions& options_;
  const ops::ExpertOrder& order_;
  at::IntArrayRef tokens_;
};

}  // namespace tessera::detail
