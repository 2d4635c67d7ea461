// SPDX-License-Identifier: MIT
#include "lib/models/fused_passes.h"

#include <ATen/ATen.h>

#include <tuple>
#include <utility>
#include <vector>

#include "lib/core/gradient_columns.h"
#include "lib/model/tensor_collectives.h"
#include "lib/models/block_activation.h"
#include "lib/models/block_adapters.h"
#include "lib/models/block_norm.h"
#include "lib/models/block_products.h"
#include "lib/models/block_weight_gradients.h"
#include "lib/models/feed_forward_pieces.h"
#include "lib/models/kept_attention.h"
#include "lib/models/linear_fp8.h"
#include "lib/models/query_key_norm.h"
#include "lib/models/shared_expert.h"
#include "lib/ops/packed.h"

namespace tessera::detail {
namespace {

using Weights = DecoderBlockWeights;
using Settings = FusedSettings;
using Saved = FusedSaved;

// attend: qkv [batch, sequence, ...], or [sequences, sequence, ...] with spare rows at the end ->
// ops::AttentionOutput.
template <typename Attention>
at::Tensor forward_with(const at::Tensor& hidden, at::IntArrayRef tokens, const Weights& w,
                        const DecoderBlockOptions& options, int64_t spare, int64_t sequence,
                        const Attention& attend, Saved* saved) {
  const TensorAxis& axis = options.axis;
  const bool post = options.residual_post_layernorm;
  const int64_t rows = c10::multiply_integers(tokens);
  const WithSpareRows memory = with_spare_rows(hidden, rows, spare, weight_of(w.qkv).size(0));
  const Norm norm1 = norm_forward(hidden, w.input_norm, options.epsilon, memory.spare,
                                  input_largest(options, BlockProduct::kQkv));
  const at::Tensor first = start_enter(norm1.output, rows, axis).wait();
  Saved kept;
  const auto adapters = [&](const ProductWeights& p, BlockProduct product) {
    return ProductAdapters(p, options, product);
  };
  const ProductAdapters of_qkv = adapters(w.qkv, BlockProduct::kQkv);
  kept.qkv_lowered = of_qkv.lower(first);
  const at::Tensor joint =
      forward_product({BlockProduct::kQkv, options}, first, w.qkv, bias_of(w.qkv),
                      of_qkv.lift(kept.qkv_lowered, first), memory.all);
  const at::Tensor qkv = spare > 0 ? joint.view({-1, sequence, joint.size(-1)})
                                   : joint.view({tokens[0], tokens[1], joint.size(-1)});
  const at::Tensor given = ops::given_tokens(qkv, tokens);
  if (w.query_norm.defined()) {
    std::tie(kept.heads, kept.key_heads) = query_key_norm_(given, w, options);
  }
  rotate(given, options, /*back=*/false);
  const ops::AttentionOutput attention = attend(qkv);
  const at::Tensor attended = row_parallel(
      ops::given_tokens(attention.output, tokens), w.dense, post ? norm1.output : hidden,
      options.dropout[0], {BlockProduct::kDense, options}, adapters(w.dense, BlockProduct::kDense),
      kept.dense_lowered);
  const Norm norm2 =
      norm_forward(attended, w.attention_norm, options.epsilon, /*cleared=*/{},
                   w.experts.defined() ? nullptr : input_largest(options, BlockProduct::kUp));
  const at::Tensor& residual = post ? norm2.output : attended;
  const int64_t piece = piece_rows(attended, w.up, options);
  const bool drops = options.dropout[1].on();
  at::Tensor inner, active, output;
  if (w.experts.defined()) {
    const bool alone = axis.size() == 1 && !drops;
    const at::Tensor entered = start_enter(norm2.output, rows, axis).wait();
    at::Tensor others = alone ? residual : at::Tensor();
    if (w.has_shared_expert()) others = shared_expert_forward(entered, others, w, options, kept);
    output = experts_forward(entered, others, w, options,
                             saved != nullptr ? &kept.experts : nullptr, !options.recomputes);
    inner = std::move(kept.inner), active = std::move(kept.active);
    if (options.recomputes) {
      if (axis.size() > 1) output = at::empty_like(attended);
    } else if (!alone) {
      output = start_leave(output, axis).wait();
      output =
          drops ? ops::dropout_add(output, residual, options.dropout[1]) : output.add_(residual);
    }
  } else if (piece > 0 && saved == nullptr) {
    output = feed_forward_in_pieces(norm2.output, residual, w, options, piece);
  } else if (piece > 0 && options.recomputes) {
    output = at::empty_like(attended);  // backward forms the pieces
  } else {
    const at::Tensor entered = start_enter(norm2.output, rows, axis).wait();
    InnerActivations made =
        inner_activations(entered, w.up, options, /*keep_inner=*/saved != nullptr,
                          input_largest(options, BlockProduct::kDown));
    inner = std::move(made.inner), active = std::move(made.active);
    kept.up_lowered = std::move(made.lowered);
    const ProductAdapters of_down = adapters(w.down, BlockProduct::kDown);
    if (options.recomputes && !is_in_fp8(options, BlockProduct::kDown)) {
      kept.down_lowered = of_down.lower(active);
      output = at::empty_like(attended);
    } else {
      output = row_parallel(active, w.down, residual, options.dropout[1],
                            {BlockProduct::kDown, options}, of_down, kept.down_lowered);
    }
  }
  if (saved) {
    kept.hidden = hidden, kept.qkv = qkv, kept.attended = attended, kept.inner = inner;
    kept.active = active, kept.norm1 = norm1, kept.norm2 = norm2, kept.attention = attention;
    *saved = std::move(kept);
    if (!options.save_norm_outputs) saved->forget_what_is_formed_anew();
    const auto in_8_bits = [&](BlockProduct product) { return has_input({product, options}); };
    if (in_8_bits(BlockProduct::kQkv)) saved->norm1.output.reset();
    if (in_8_bits(BlockProduct::kUp)) saved->norm2.output.reset();
    if (in_8_bits(BlockProduct::kDown)) saved->active.reset();
  }
  return output;
}

}  // namespace

at::Tensor run_forward(const at::Tensor& hidden, at::IntArrayRef tokens, const Weights& w,
                       const Settings& settings, Saved* saved) {
  GivenAttention given;
  const auto attend = [&](const at::Tensor& qkv) -> ops::AttentionOutput {
    if (settings.attention) {
      return {attend_given(settings.attention, qkv, w.sinks, saved ? &given : nullptr), {}};
    }
    return attend_once(qkv, settings, /*is_again=*/saved != nullptr);
  };
  const at::Tensor output =
      forward_with(hidden, tokens, w, settings.options, spare_rows(hidden, w, settings),
                   settings.packed.sequence, attend, saved);
  if (saved) saved->given = std::move(given);
  return output;
}

at::Tensor run_backward(const at::Tensor& gradient, const Weights& w, const Weights& g,
                        const Settings& settings, Saved& s) {
  const DecoderBlockOptions& options = settings.options;
  const TensorAxis& axis = options.axis;
  const bool post = options.residual_post_layernorm;
  const std::vector<int64_t> tokens =
      (settings.packed.defined() ? settings.packed.positions.sizes() : s.qkv.sizes().slice(0, 2))
          .vec();
  const int64_t rows = c10::multiply_integers(tokens);
  const int64_t spare = s.qkv.size(0) * s.qkv.size(1) - rows;
  const auto& [attention_dropout, inner_dropout] = options.dropout;
  ops::ColumnSums sums;
  GradientColumns* const between = options.gradient_columns.get();
  BlockWeightGradients weights(w, g, options, rows);
  const auto adapters = [&](const ProductWeights& p, BlockProduct product) {
    return ProductAdapters(p, options, product);
  };
  const ProductAdapters of_qkv = adapters(w.qkv, BlockProduct::kQkv),
                        of_dense = adapters(w.dense, BlockProduct::kDense),
                        of_up = adapters(w.up, BlockProduct::kUp),
                        of_down = adapters(w.down, BlockProduct::kDown);
  // Gradient of a product's input, with its sum over ranks started.
  const auto start_input = [&](const at::Tensor& dy, const ProductWeights& p, BlockProduct product,
                               const ProductAdapters& of_p, at::Tensor& dlowered) {
    const at::Tensor dx = backward_input({product, options}, dy, p);
    dlowered = of_p.back(dy, dx);
    return start_leave(dx, axis);
  };
  // up's weight gradient overlaps the last sum over ranks, where memory is not scarce.
  const bool experts = w.experts.defined();
  const bool up_later = axis.size() > 1 && !axis.sequence_parallel() && !experts;
  ProductWork up{BlockProduct::kUp, {}, {}, s.up_lowered, {}};
  Pending up_input;
  const auto add_up = [&] {
    up.x = up_input.wait();
    up_input = {};
    weights.add(std::exchange(up, {}));
  };
  const at::Tensor no_residual, gradient_columns = between ? between->take(gradient) : at::Tensor();
  at::Tensor dattended, dcontext, ddense;
  Pending all_dattention;
  ExpertsBackward of_experts;
  SharedExpertBackward of_shared;
  bool needs_norm = true;  // the second norm's output, for up's weight gradient
  {
    at::Tensor dnorm;
    Norm norm = s.norm2;
    const int64_t piece = s.inner.defined() || experts ? 0 : piece_rows(s.attended, w.up, options);
    const bool needs_active = !has_input({BlockProduct::kDown, options});
    needs_norm = experts || (piece == 0 && !has_input({BlockProduct::kUp, options}));
    const auto branch_gradient = [&] {
      return inner_dropout.on()
                 ? ops::dropout_backward(gradient, inner_dropout, only_bias(g.down), sums)
                 : gradient;
    };
    if (experts) {
      if (!s.experts.inner.defined()) {
        const at::Tensor x =
            norm.output.defined()
                ? norm.output
                : norm_forward(s.attended, w.attention_norm, options.epsilon).output;
        form_inner(start_enter(x, rows, axis).wait(), w, options, s.experts);
      }
      Pending all_gradient = start_enter(branch_gradient(), rows, axis);
      of_experts =
          experts_backward(all_gradient.wait(), w, g, options, s.experts, s.of_router_sums);
      if (w.has_shared_expert()) {
        of_shared = shared_expert_backward(all_gradient.tensor, w, g, options, s, of_experts.dx,
                                           weights, sums);
      }
      dnorm = start_leave(of_experts.dx, axis).wait();
    } else if (piece > 0) {
      dnorm = feed_forward_in_pieces_backward(gradient, s.attended, w, g, options, piece, weights);
    } else {
      Pending all_gradient = start_enter(branch_gradient(), rows, axis);
      at::Tensor active = s.active;
      const at::Tensor dactive =
          backward_input({BlockProduct::kDown, options}, all_gradient.wait(), w.down);
      const at::Tensor ddown = of_down.back(all_gradient.tensor, dactive);
      up.dy = activation_backward(dactive, s.inner, needs_active ? &active : nullptr, options, w.up,
                                  g.up, sums, gradient_largest(options, BlockProduct::kUp));
      Pending sum = start_input(up.dy, w.up, BlockProduct::kUp, of_up, up.dlowered);
      weights.add({BlockProduct::kDown, all_gradient.tensor, active, s.down_lowered, ddown});
      active.reset();
      dnorm = sum.wait();
    }
    if (!inner_dropout.on()) add_bias(gradient, w.down, g.down, sums, gradient_columns);
    if (post) dnorm.add_(gradient);
    norm.needed = needs_norm;
    const bool attention_drops = attention_dropout.on();
    const WithSpareRows memory = with_spare_rows(dnorm, rows, spare, weight_of(w.dense).size(1));
    dattended = norm_backward(
        dnorm, s.attended, norm, w.attention_norm, g.attention_norm, post ? no_residual : gradient,
        {.column_sum = attention_drops ? at::Tensor() : only_bias(g.dense),
         .cleared = memory.spare,
         .largest = attention_drops ? nullptr : gradient_largest(options, BlockProduct::kDense)},
        sums);
    const at::Tensor dattention =
        attention_drops
            ? ops::dropout_backward(dattended, attention_dropout, only_bias(g.dense), sums)
            : dattended;
    all_dattention = start_enter(dattention, rows, axis);
    if (experts) {
      const at::Tensor entered = weights.enter_norm(norm.output).wait();
      add_expert_gradients(entered, of_experts, w, g, options, s.experts);
      of_experts = {};
      if (w.has_shared_expert()) {
        add_shared_expert_gradients(entered, std::exchange(of_shared, {}), weights);
      }
    } else if (needs_norm) {
      up_input = weights.enter_norm(norm.output);
    }
    const ProductKind dense{BlockProduct::kDense, options};
    if (spare > 0) {
      backward_input_out(dense, all_dattention.wait(), w.dense, memory.product);
      dcontext = memory.all;
    } else {
      dcontext = backward_input(dense, all_dattention.wait(), w.dense);
    }
    ddense = of_dense.back(all_dattention.tensor, spare > 0 ? memory.product : dcontext);
    if (piece == 0 && !up_later && !experts) add_up();
  }
  const at::Tensor dattention_output = dcontext.view(s.attention.output.sizes());
  const at::Tensor dqkv =
      s.given.defined()
          ? attend_given_backward(std::exchange(s.given, {}), dattention_output, g.sinks)
                .contiguous()
          : ops::given_tokens(
                ops::attention_backward(dattention_output, s.qkv, options.attention,
                                        settings.attention_mask, s.attention, settings.packed),
                tokens);
  rotate(dqkv, options, /*back=*/true);
  if (w.query_norm.defined()) {
    query_key_norm_backward_(dqkv, w, g, options, {s.heads, s.key_heads}, sums);
  }
  at::Tensor of_dqkv;
  Pending sum = start_input(dqkv, w.qkv, BlockProduct::kQkv, of_qkv, of_dqkv);
  const at::Tensor context = ops::given_tokens(s.attention.output, tokens);
  weights.add({BlockProduct::kDense, all_dattention.tensor, context, s.dense_lowered, ddense});
  add_bias(dqkv, w.qkv, g.qkv, sums);
  if (up_later) add_up();
  at::Tensor dnorm = sum.wait();
  if (post) dnorm.add_(dattended);
  Norm norm = s.norm1;
  norm.needed = !has_input({BlockProduct::kQkv, options});
  // The previous block is usually of this kind too.
  const bool hands_columns = between != nullptr && !w.down.biases.empty() && !inner_dropout.on();
  at::Tensor columns;
  const at::Tensor dhidden = norm_backward(dnorm, s.hidden, norm, w.input_norm, g.input_norm,
                                           post ? no_residual : dattended,
                                           {.columns = hands_columns ? &columns : nullptr}, sums);
  if (between != nullptr) between->hand(dhidden, columns);
  Pending all_norm = norm.needed ? weights.enter_norm(norm.output) : Pending{};
  weights.add(sums);
  weights.add({BlockProduct::kQkv, dqkv, all_norm.wait(), s.qkv_lowered, of_dqkv});
  weights.hand_over();
  return dhidden;
}

}  // namespace tessera::detail

namespace tessera {

at::Tensor decoder_block_inference(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                   const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                   const DecoderAttention& attention) {
  const at::NoGradGuard no_grad;
  const auto attend = [&](const at::Tensor& qkv) {
    return ops::AttentionOutput{attention(qkv, weights.sinks), {}};
  };
  return detail::forward_with(hidden.contiguous(), tokens, weights, options, /*spare=*/0,
                              /*sequence=*/0, attend, nullptr);
}

}  // namespace tessera
