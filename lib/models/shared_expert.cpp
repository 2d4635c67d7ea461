// SPDX-License-Identifier: MIT
#include "lib/models/shared_expert.h"

#include <ATen/ATen.h>

#include <utility>

#include "lib/models/block_activation.h"
#include "lib/models/block_adapters.h"
#include "lib/models/block_products.h"
#include "lib/models/feed_forward_pieces.h"
#include "lib/models/linear_fp8.h"
#include "lib/ops/routing.h"

namespace tessera::detail {
namespace {

at::Tensor token_rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

bool is_gated(const DecoderBlockWeights& w) { return !w.shared_gate.weights.empty(); }

// A number a token, in the form of x's leading dimensions.
at::Tensor by_token(const at::Tensor& gate, const at::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = 1;
  return gate.view(shape);
}

}  // namespace

at::Tensor shared_expert_forward(const at::Tensor& x, const at::Tensor& residual,
                                 const DecoderBlockWeights& w, const DecoderBlockOptions& options,
                                 FusedSaved& kept) {
  InnerActivations made = inner_activations(x, w.up, options, /*keep_inner=*/true);
  kept.inner = std::move(made.inner), kept.active = std::move(made.active);
  kept.up_lowered = std::move(made.lowered);
  at::Tensor active = kept.active;
  if (is_gated(w)) {
    const ProductAdapters of_gate(w.shared_gate, options, BlockProduct::kSharedGate);
    kept.gate_lowered = of_gate.lower(x);
    const at::Tensor logits = ops::router_logits(token_rows(x), w.shared_gate.weights[0]);
    if (of_gate.any()) logits.add_(token_rows(of_gate.lift(kept.gate_lowered, x)));
    kept.shared_gate = logits.sigmoid();
    active = active * by_token(kept.shared_gate, active).to(active.scalar_type());
  }
  const ProductAdapters of_down(w.down, options, BlockProduct::kDown);
  kept.down_lowered = of_down.lower(active);
  if (options.recomputes && !is_in_fp8(options, BlockProduct::kDown)) return {};
  const at::Tensor sum =
      forward_product({BlockProduct::kDown, options}, active, w.down, {}, residual);
  of_down.add_lifted(sum, kept.down_lowered);
  return sum;
}

SharedExpertBackward shared_expert_backward(const at::Tensor& gradient,
                                            const DecoderBlockWeights& w,
                                            const DecoderBlockWeights& g,
                                            const DecoderBlockOptions& options, const FusedSaved& s,
                                            const at::Tensor& dx, BlockWeightGradients& weights,
                                            ops::ColumnSums& sums) {
  const ProductAdapters of_up(w.up, options, BlockProduct::kUp),
      of_down(w.down, options, BlockProduct::kDown),
      of_gate(w.shared_gate, options, BlockProduct::kSharedGate);
  SharedExpertBackward result;
  result.up = {BlockProduct::kUp, {}, {}, s.up_lowered, {}};
  result.gate = {BlockProduct::kSharedGate, {}, {}, s.gate_lowered, {}};
  const at::Tensor dactive = backward_input({BlockProduct::kDown, options}, gradient, w.down);
  const at::Tensor ddown = of_down.back(gradient, dactive);
  at::Tensor active = s.active;
  bool forms_active = !has_input({BlockProduct::kDown, options});
  if (is_gated(w)) {
    forms_active = false;
    if (!active.defined()) active = activation_forward(s.inner, options);
    const at::Tensor& gate = s.shared_gate;
    const at::Tensor dgate =
        (dactive * active).sum(-1, /*keepdim=*/true, gate.scalar_type()).view_as(gate);
    result.gate.dy = (dgate * gate * (1 - gate)).to(dactive.scalar_type());
    const at::Tensor factor = by_token(gate, active).to(active.scalar_type());
    dactive.mul_(factor);
    active = active * factor;
  }
  result.up.dy = activation_backward(dactive, s.inner, forms_active ? &active : nullptr, options,
                                     w.up, g.up, sums);
  weights.add({BlockProduct::kDown, gradient, active, s.down_lowered, ddown});
  const at::Tensor of_up_input = backward_input({BlockProduct::kUp, options}, result.up.dy, w.up);
  result.up.dlowered = of_up.back(result.up.dy, of_up_input);
  dx.add_(of_up_input);
  if (is_gated(w)) {
    token_rows(dx).addmm_(result.gate.dy, w.shared_gate.weights[0]);
    result.gate.dlowered = of_gate.back(result.gate.dy, dx);
  }
  return result;
}

void add_shared_expert_gradients(const at::Tensor& x, SharedExpertBackward backward,
                                 BlockWeightGradients& weights) {
  backward.up.x = x;
  weights.add(std::move(backward.up));
  if (!backward.gate.dy.defined()) return;
  backward.gate.x = x;
  weights.add(std::move(backward.gate));
}

}  // namespace tessera::detail
