// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lib/core/gradient_columns.h"
#include "lib/model/tensor_collectives.h"
#include "lib/models/block_activation.h"
#include "lib/models/block_adapters.h"
#include "lib/models/block_norm.h"
#include "lib/models/block_products.h"
#include "lib/models/block_weight_gradients.h"
#include "lib/models/decoder_block.h"
#include "lib/models/feed_forward_pieces.h"
#include "lib/models/fused_block.h"
#include "lib/models/kept_attention.h"
#include "lib/models/linear_fp8.h"
#include "lib/ops/packed.h"
#include "lib/ops/saved_value.h"
#include "tessera/core/deferred_gradients.h"

namespace tessera {

namespace {

using detail::activation_backward;
using detail::add_bias;
using detail::backward_input;
using detail::backward_input_out;
using detail::bias_of;
using detail::BlockProduct;
using detail::forward_product;
using detail::has_input;
using detail::Norm;
using detail::norm_backward;
using detail::norm_forward;
using detail::only_bias;
using detail::Pending;
using detail::ProductAdapters;
using detail::ProductKind;
using detail::rotate;
using detail::row_parallel;
using detail::spare_rows;
using detail::start_enter;
using detail::start_leave;
using detail::unless_kept;
using detail::weight_of;
using detail::with_spare_rows;
using detail::WithSpareRows;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Weights = DecoderBlockWeights;
using Settings = detail::FusedSettings;
using Saved = detail::FusedSaved;

ops::HeadNorms head_norms(const Weights& w, const DecoderBlockOptions& options) {
  return {w.query_norm, w.key_norm, options.epsilon};
}

// attend: qkv [batch, sequence, ...], or [sequences, sequence, ...] with spare rows at the end ->
// ops::AttentionOutput.
template <typename Attention>
at::Tensor run_forward(const at::Tensor& hidden, at::IntArrayRef tokens, const Weights& w,
                       const DecoderBlockOptions& options, int64_t spare, int64_t sequence,
                       const Attention& attend, Saved* saved) {
  const TensorAxis& axis = options.axis;
  const bool post = options.residual_post_layernorm;
  const int64_t rows = c10::multiply_integers(tokens);
  const WithSpareRows memory = with_spare_rows(hidden, rows, spare, weight_of(w.qkv).size(0));
  const Norm norm1 = norm_forward(hidden, w.input_norm, options.epsilon, memory.spare);
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
  ops::HeadNormInput heads;
  if (w.query_norm.defined()) {
    heads = ops::head_norm_(given, options.attention, head_norms(w, options));
  }
  rotate(given, options, /*back=*/false);
  const ops::AttentionOutput attention = attend(qkv);
  const at::Tensor attended = row_parallel(
      ops::given_tokens(attention.output, tokens), w.dense, post ? norm1.output : hidden,
      options.dropout[0], {BlockProduct::kDense, options}, adapters(w.dense, BlockProduct::kDense),
      kept.dense_lowered);
  const Norm norm2 = norm_forward(attended, w.attention_norm, options.epsilon);
  const at::Tensor& residual = post ? norm2.output : attended;
  const int64_t piece = detail::piece_rows(attended, w.up, options);
  at::Tensor inner, active, output;
  if (piece > 0 && saved == nullptr) {
    output = detail::feed_forward_in_pieces(norm2.output, residual, w, options, piece);
  } else if (piece > 0 && options.recomputes) {
    output = at::empty_like(attended);  // backward forms the pieces
  } else {
    const at::Tensor entered = start_enter(norm2.output, rows, axis).wait();
    detail::InnerActivations made =
        detail::inner_activations(entered, w.up, options, /*keep_inner=*/saved != nullptr);
    inner = std::move(made.inner), active = std::move(made.active);
    kept.up_lowered = std::move(made.lowered);
    const ProductAdapters of_down = adapters(w.down, BlockProduct::kDown);
    if (options.recomputes && options.fp8 == Fp8::kOff) {
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
    kept.heads = heads;
    *saved = std::move(kept);
    if (!options.save_norm_outputs) saved->forget_what_is_formed_anew();
    const auto in_8_bits = [&](BlockProduct product) { return has_input({product, options}); };
    if (in_8_bits(BlockProduct::kQkv)) saved->norm1.output.reset();
    if (in_8_bits(BlockProduct::kUp)) saved->norm2.output.reset();
    if (in_8_bits(BlockProduct::kDown)) saved->active.reset();
  }
  return output;
}

at::Tensor run_forward(const at::Tensor& hidden, at::IntArrayRef tokens, const Weights& w,
                       const Settings& settings, Saved* saved) {
  detail::GivenAttention given;
  const auto attend = [&](const at::Tensor& qkv) -> ops::AttentionOutput {
    if (settings.attention) {
      return {detail::attend_given(settings.attention, qkv, saved ? &given : nullptr), {}};
    }
    return detail::attend_once(qkv, settings, /*is_again=*/saved != nullptr);
  };
  const at::Tensor output =
      run_forward(hidden, tokens, w, settings.options, spare_rows(hidden, w, settings),
                  settings.packed.sequence, attend, saved);
  if (saved) saved->given = std::move(given);
  return output;
}

// Adds all weight gradients to the tensors in g, whose undefined members are skipped, or defers
// them.
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
  detail::BlockWeightGradients weights(w, g, options, rows);
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
  const bool up_later = axis.size() > 1 && !axis.sequence_parallel();
  detail::ProductWork up{BlockProduct::kUp, {}, {}, s.up_lowered, {}};
  Pending up_input;
  const auto add_up = [&] {
    up.x = up_input.wait();
    up_input = {};
    weights.add(std::exchange(up, {}));
  };
  const at::Tensor no_residual, gradient_columns = between ? between->take(gradient) : at::Tensor();
  at::Tensor dattended, dcontext, ddense;
  Pending all_dattention;
  bool needs_norm = true;  // the second norm's output, for up's weight gradient
  {
    at::Tensor dnorm;
    Norm norm = s.norm2;
    const int64_t piece = s.inner.defined() ? 0 : detail::piece_rows(s.attended, w.up, options);
    const bool needs_active = !has_input({BlockProduct::kDown, options});
    needs_norm = piece == 0 && !has_input({BlockProduct::kUp, options});
    if (piece > 0) {
      dnorm = detail::feed_forward_in_pieces_backward(gradient, s.attended, w, g, options, piece,
                                                      weights);
    } else {
      const at::Tensor dbranch = inner_dropout.on() ? ops::dropout_backward(gradient, inner_dropout,
                                                                            only_bias(g.down), sums)
                                                    : gradient;
      Pending all_gradient = start_enter(dbranch, rows, axis);
      at::Tensor active = s.active;
      const at::Tensor dactive =
          backward_input({BlockProduct::kDown, options}, all_gradient.wait(), w.down);
      const at::Tensor ddown = of_down.back(all_gradient.tensor, dactive);
      up.dy = activation_backward(dactive, s.inner, needs_active ? &active : nullptr, options, w.up,
                                  g.up, sums);
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
    dattended = norm_backward(dnorm, s.attended, norm, w.attention_norm, g.attention_norm,
                              post ? no_residual : gradient,
                              {.column_sum = attention_drops ? at::Tensor() : only_bias(g.dense),
                               .cleared = memory.spare},
                              sums);
    const at::Tensor dattention =
        attention_drops
            ? ops::dropout_backward(dattended, attention_dropout, only_bias(g.dense), sums)
            : dattended;
    all_dattention = start_enter(dattention, rows, axis);
    if (needs_norm) up_input = weights.enter_norm(norm.output);
    const ProductKind dense{BlockProduct::kDense, options};
    if (spare > 0) {
      backward_input_out(dense, all_dattention.wait(), w.dense, memory.product);
      dcontext = memory.all;
    } else {
      dcontext = backward_input(dense, all_dattention.wait(), w.dense);
    }
    ddense = of_dense.back(all_dattention.tensor, spare > 0 ? memory.product : dcontext);
    if (piece == 0 && !up_later) add_up();
  }
  const at::Tensor dattention_output = dcontext.view(s.attention.output.sizes());
  const at::Tensor dqkv =
      s.given.defined()
          ? detail::attend_given_backward(std::exchange(s.given, {}), dattention_output)
                .contiguous()
          : ops::given_tokens(
                ops::attention_backward(dattention_output, s.qkv, options.attention,
                                        settings.attention_mask, s.attention, settings.packed),
                tokens);
  rotate(dqkv, options, /*back=*/true);
  if (w.query_norm.defined()) {
    ops::head_norm_backward_(dqkv, options.attention, head_norms(w, options), s.heads, g.query_norm,
                             g.key_norm, sums);
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

class FusedBlock : public torch::autograd::Function<FusedBlock> {
 public:
  // Weights that autograd must see are also separate arguments. Backward reads all weights through
  // their handles, whose storage a strategy may have replaced meanwhile.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            at::IntArrayRef tokens, const Settings& settings,
                            const Weights& weights, at::TensorList, const std::vector<bool>& seen) {
    Saved s;
    const at::Tensor output = run_forward(hidden, tokens, weights, settings, &s);
    variable_list kept{s.hidden,
                       s.qkv,
                       s.attended,
                       s.inner,
                       s.active,
                       s.norm1.output,
                       s.norm1.mean,
                       s.norm1.rstd,
                       s.norm2.output,
                       s.norm2.mean,
                       s.norm2.rstd,
                       s.attention.output,
                       s.attention.log_sum_exp,
                       s.attention.random_state,
                       s.heads.x,
                       s.heads.rstd,
                       s.qkv_lowered,
                       s.dense_lowered,
                       s.up_lowered,
                       s.down_lowered};
    context->save_for_backward(std::move(kept));
    save_value(context, "weights", weights);
    save_value(context, "settings", settings);
    save_value(context, "seen", seen);
    if (s.given.defined()) save_value(context, "given", std::move(s.given));
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& weights = saved_value<Weights>(context, "weights");
    const auto& settings = saved_value<Settings>(context, "settings");
    const variable_list v = context->get_saved_variables();
    const Norm norm1{v[5], v[6], v[7]}, norm2{v[8], v[9], v[10]};
    Saved saved{v[0],           v[1],  v[2],  v[3],  v[4], norm1, norm2, {v[11], v[12], v[13]},
                {v[14], v[15]}, v[16], v[17], v[18], v[19]};
    if (const auto given = context->saved_data.find("given"); given != context->saved_data.end()) {
      saved.given = saved_value<detail::GivenAttention>(context, "given");
      context->saved_data.erase(given);  // its memory is free as soon as it is read
    }
    variable_list result(4);  // hidden, tokens, settings, weights as a whole; then the seen ones
    Weights sinks = weights;
    auto seen = saved_value<std::vector<bool>>(context, "seen").begin();
    for_each_tensor(sinks, [&](at::Tensor& weight) {
      at::Tensor sink, for_autograd;
      if (weight.requires_grad()) {
        sink = weight.grad();
        if (!sink.defined()) sink = for_autograd = at::zeros_like(weight);
      }
      if (*seen++) {
        result.push_back(for_autograd);
      } else if (for_autograd.defined()) {
        weight.mutable_grad() = for_autograd;
      }
      weight = sink;
    });
    result.emplace_back();  // for `seen`
    result[0] = run_backward(gradients[0].contiguous(), weights, sinks, settings, saved);
    return result;
  }
};

}  // namespace

at::Tensor decoder_block_fused(const at::Tensor& hidden, const Weights& weights,
                               const DecoderBlockOptions& options, at::IntArrayRef tokens,
                               const at::Tensor& attention_mask, const PackedRows& packed,
                               const DecoderAttention& attention) {
  Settings settings{options, attention_mask, packed, attention};
  if (options.fp8 == Fp8::kTensorwise) settings.options.fp8_pass = std::make_shared<Fp8Pass>();
  const at::Tensor input = hidden.contiguous();
  if (!options.axis.sequence_parallel()) tokens = hidden.sizes().slice(0, 2);
  if (!at::GradMode::is_enabled()) return run_forward(input, tokens, weights, settings, nullptr);
  // Each weight that autograd sees costs it a node, although the gradient goes to .grad().
  std::vector<at::Tensor> list;
  std::vector<bool> seen;
  Weights handles = weights;
  for_each_tensor(handles, [&](const at::Tensor& weight) {
    seen.push_back(!input.requires_grad() || !weight.grad().defined());
    if (seen.back()) list.push_back(weight);
  });
  std::shared_ptr<DeferredGradients>& deferred = settings.options.deferred_gradients;
  // Gradients returned to autograd cannot be deferred.
  if (std::ranges::any_of(list, &at::Tensor::requires_grad)) deferred.reset();
  if (deferred != nullptr) deferred->promise();
  // Deferred work keeps its operands in their dtype, which may be the ranks' own tokens.
  if (Fp8Pass* const pass = settings.options.fp8_pass.get(); pass && deferred == nullptr) {
    pass->keeps_inputs = options.save_norm_outputs;
    pass->keeps_gradients = true;
  }
  return FusedBlock::apply(input, tokens, settings, weights, at::TensorList(list), seen);
}

at::Tensor decoder_block_inference(const at::Tensor& hidden, const Weights& weights,
                                   const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                   const DecoderAttention& attention) {
  const at::NoGradGuard no_grad;
  const auto attend = [&](const at::Tensor& qkv) {
    return ops::AttentionOutput{attention(qkv), {}};
  };
  return run_forward(hidden.contiguous(), tokens, weights, options, /*spare=*/0, /*sequence=*/0,
                     attend, nullptr);
}

}  // namespace tessera
