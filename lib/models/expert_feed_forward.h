// SPDX-License-Identifier: MIT
#pragma once
// Feed-forward of a decoder layer with experts: the router chooses some of them for every token,
// and the token's output is the sum of theirs, each times its weight. A row's weight multiplies the
// input of down, which is the same sum, so backward needs no output of down.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"
#include "lib/ops/routing.h"

namespace tessera::detail {

// Saved for backward.
struct ExpertsSaved {
  // [rows, 2 I], gate and up of every row; undefined: no experts, or form_inner() is to run
  at::Tensor inner;
  ops::Routing routing;
  ops::ExpertOrder order;
  at::Tensor up_lowered;            // see ExpertAdapters::lower(); undefined without adapters of up
  at::Tensor log_sum_exp, counted;  // of ops::router_sums(); undefined: not asked
  // On an expert axis, of all ranks' tokens (expert_exchange.h): routing is of this rank's, order
  // and inner of all. gathered: only where gradients of up or of its adapters read it.
  at::Tensor gathered, weights, foreign;
};

template <typename Saved, typename Function>  // ExpertsSaved, or a constant one
void for_each_tensor_of(Saved& saved, const Function& function) {
  function(saved.inner);
  function(saved.routing.probabilities);
  function(saved.routing.experts);
  function(saved.routing.weights);
  function(saved.order.tokens);
  function(saved.order.slots);
  function(saved.order.rows);
  function(saved.order.ends);
  function(saved.up_lowered);
  function(saved.log_sum_exp);
  function(saved.counted);
  function(saved.gathered);
  function(saved.weights);
  function(saved.foreign);
}

// x, residual [..., h] -> residual + the experts' sum, like x; residual undefined: 0. saved: null
// without gradients. Without `output` only what backward needs is computed. With
// options.recompute_experts saved has no inner.
at::Tensor experts_forward(const at::Tensor& x, const at::Tensor& residual,
                           const DecoderBlockWeights& w, const DecoderBlockOptions& options,
                           ExpertsSaved* saved, bool output = true);

// Forms saved.inner, and what up's adapters save, of forward's x again. Nothing where it is there.
void form_inner(const at::Tensor& x, const DecoderBlockWeights& w,
                const DecoderBlockOptions& options, ExpertsSaved& saved);

// Gradients of the products that read x.
struct ExpertsBackward {
  at::Tensor dx;        // [..., h]
  at::Tensor dinner;    // of inner
  at::Tensor dlogits;   // of the router's logits, in x's dtype
  at::Tensor dlowered;  // see ExpertAdapters::back(), of up
};
// gradient [..., h]; of_sums: of the router's sums, undefined: 0. Adds the weight gradients of down
// and of its adapters to g.
ExpertsBackward experts_backward(const at::Tensor& gradient, const DecoderBlockWeights& w,
                                 const DecoderBlockWeights& g, const DecoderBlockOptions& options,
                                 const ExpertsSaved& saved, const at::Tensor& of_sums = {});
// Adds the weight gradients of the router, of up and of its adapters, and biases', to g.
void add_expert_gradients(const at::Tensor& x, const ExpertsBackward& backward,
                          const DecoderBlockWeights& w, const DecoderBlockWeights& g,
                          const DecoderBlockOptions& options, const ExpertsSaved& saved);

// experts_forward() without a residual, for autograd. Weight gradients are added to .grad() where
// it is defined, and returned to autograd elsewhere.
at::Tensor experts(const at::Tensor& x, const DecoderBlockWeights& w,
                   const DecoderBlockOptions& options);

}  // namespace tessera::detail
