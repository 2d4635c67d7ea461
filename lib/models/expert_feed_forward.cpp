// SPDX-License-Identifier: MIT
#include "lib/models/expert_feed_forward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "lib/models/expert_adapters.h"
#include "lib/models/expert_biases.h"
#include "lib/models/expert_exchange.h"
#include "lib/ops/clamped_swiglu.h"
#include "lib/ops/expert_rows.h"
#include "lib/ops/grouped_product.h"
#include "lib/ops/router_sums.h"
#include "lib/ops/saved_value.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_tokens(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

// Tokens whose rows the experts compute: x's, or on an expert axis those of all its ranks.
at::Tensor all_tokens(const at::Tensor& x, const ExpertsSaved& saved) {
  return saved.gathered.defined() ? saved.gathered : as_tokens(x);
}

// One of w's weights as [experts, in, out], or [experts, out, in].
at::Tensor by_inputs(const at::Tensor& weight, const ExpertWeights& w) {
  return w.clamped ? weight : weight.transpose(1, 2);
}
at::Tensor by_outputs(const at::Tensor& weight, const ExpertWeights& w) {
  return w.clamped ? weight.transpose(1, 2) : weight;
}

// Adds to a weight's gradient, stored as w's weights are.
void add_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const ops::ExpertOrder& order,
                         const ExpertWeights& w, const at::Tensor& to) {
  w.clamped ? ops::grouped_weight_gradient(x, dy, order.ends, to)
            : ops::grouped_weight_gradient(dy, x, order.ends, to);
}

// Weights of the tokens whose rows are computed.
const at::Tensor& weights_of(const ExpertsSaved& saved) {
  return saved.weights.defined() ? saved.weights : saved.routing.weights;
}
// Each row's weight, [rows, 1].
at::Tensor row_weights(const ExpertsSaved& saved) {
  return weights_of(saved).reshape({-1}).index_select(0, saved.order.slots).unsqueeze(1);
}

// Rows of down's inputs, with their weights.
at::Tensor activated_rows(const ExpertsSaved& saved, const ExpertWeights& w) {
  if (w.clamped) return ops::clamped_swiglu_forward(saved.inner).mul_(row_weights(saved));
  return ops::weighted_swiglu(saved.inner, weights_of(saved), saved.order);
}

// Of activated_rows(). `gradient` is overwritten.
ops::WeightedSwigluBackward activation_backward_(const at::Tensor& gradient,
                                                 const ExpertsSaved& saved,
                                                 const ExpertWeights& w) {
  if (!w.clamped) {
    return ops::weighted_swiglu_backward_(gradient, saved.inner, weights_of(saved), saved.order,
                                          saved.foreign);
  }
  const at::Tensor weights = row_weights(saved);
  ops::WeightedSwigluBackward result{.output = ops::clamped_swiglu_forward(saved.inner)};
  const at::Tensor dots =
      (gradient * result.output).sum(-1, /*keepdim=*/false, weights.scalar_type());
  result.weights = dots.index_select(0, saved.order.rows.view(-1)).view_as(saved.order.rows);
  result.output.mul_(weights);
  gradient.mul_(weights);
  result.gate_up = ops::clamped_swiglu_backward(gradient, saved.inner);
  return result;
}

// The layer's adapters, of rows in this order. x: [..., h].
struct AdaptersOf {
  AdaptersOf(const DecoderBlockWeights& w, const DecoderBlockOptions& options,
             const ops::ExpertOrder& order, const at::Tensor& x)
      : up(w.experts.up_adapters, BlockProduct::kUp, options, order,
           x.sizes().slice(0, x.dim() - 1)),
        down(w.experts.down_adapters, BlockProduct::kDown, options, order,
             x.sizes().slice(0, x.dim() - 1)) {}
  ExpertAdapters up, down;
};

class Experts : public torch::autograd::Function<Experts> {
 public:
  // The output, and the router's sums if they are asked for.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList,
                               const DecoderBlockWeights& w, DecoderBlockOptions options) {
    ExpertsSaved saved;
    const at::Tensor input = x.contiguous();
    at::Tensor sums;
    if (options.router_sums != nullptr) options.router_sums = &sums;
    const at::Tensor output = experts_forward(input, {}, w, options, &saved);
    options.router_sums = nullptr;
    variable_list kept{input};
    for_each_tensor_of(saved, [&](const at::Tensor& tensor) { kept.push_back(tensor); });
    context->save_for_backward(std::move(kept));
    save_value(context, "weights", w);
    save_value(context, "options", options);
    return sums.defined() ? variable_list{output, sums} : variable_list{output};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list kept = context->get_saved_variables();
    const auto& options = saved_value<DecoderBlockOptions>(context, "options");
    const DecoderBlockWeights w = saved_value<DecoderBlockWeights>(context, "weights");
    ExpertsSaved saved;
    auto next = kept.begin() + 1;
    for_each_tensor_of(saved, [&](at::Tensor& tensor) { tensor = *next++; });
    DecoderBlockWeights sinks;
    variable_list result(1);
    const auto sink = [&](const at::Tensor& weight, at::Tensor& to) {
      result.emplace_back();
      if (!weight.requires_grad()) return;
      if (weight.is_leaf()) to = weight.grad();
      if (!to.defined()) to = result.back() = at::zeros_like(weight);
    };
    sinks.experts = w.experts;
    for_each_tensor_of_experts(sinks.experts, [&](at::Tensor& to) {
      const at::Tensor weight = std::exchange(to, {});
      sink(weight, to);
    });
    form_inner(kept[0], w, options, saved);
    const ExpertsBackward back =
        experts_backward(gradients[0].contiguous(), w, sinks, options, saved,
                         gradients.size() > 1 ? gradients[1] : at::Tensor());
    add_expert_gradients(kept[0], back, w, sinks, options, saved);
    result[0] = back.dx;
    result.resize(result.size() + 2);  // for weights as a whole, and options
    return result;
  }
};

}  // namespace

at::Tensor experts_forward(const at::Tensor& x, const at::Tensor& residual,
                           const DecoderBlockWeights& w, const DecoderBlockOptions& options,
                           ExpertsSaved* saved, bool output) {
  const at::Tensor tokens = as_tokens(x);
  ExpertsSaved made;
  const at::Tensor logits = ops::router_logits(tokens, w.experts.router);
  if (w.experts.clamped) logits.add_(w.experts.router_bias);
  made.routing = ops::route(logits, options.routing);
  if (options.router_sums != nullptr) {
    made.log_sum_exp = logits.logsumexp(-1), made.counted = options.counted_tokens;
    ops::Routing shares = made.routing;
    if (options.routing.sigmoid) {  // a token's shares add up to 1
      shares.probabilities = shares.probabilities / shares.probabilities.sum(-1, /*keepdim=*/true);
    }
    *options.router_sums = ops::router_sums(shares, made.log_sum_exp, made.counted);
  }
  const TokenExchange exchange(options.expert_axis, tokens.size(0), options.expert_tokens);
  if (exchange.on()) {
    const int64_t count = w.experts.up.size(0);
    const RoutedTokens routed = gather_routing(made.routing, count, exchange);
    made.weights = routed.weights, made.foreign = routed.foreign;
    made.order = own_order(routed, count);
    made.gathered = exchange.gather(tokens);
  } else {
    made.order = ops::expert_order(made.routing.experts, w.experts.router.size(0));
  }
  form_inner(x, w, options, made);
  const AdaptersOf adapters(w, options, made.order, x);
  const bool reads_inputs =
      w.experts.up.requires_grad() || adapters.up.any() || options.recompute_experts;
  if (!reads_inputs) made.gathered.reset();
  at::Tensor result = at::empty_like(x);
  if (output) {
    const at::Tensor active = activated_rows(made, w.experts);
    const at::Tensor rows =
        ops::grouped_product(active, by_inputs(w.experts.down, w.experts), made.order.ends);
    adapters.down.add_lifted(rows, adapters.down.lower(active));
    const at::Tensor sum =
        exchange.scatter_sum(ops::combine_rows(rows, made.order, made.foreign)).view(x.sizes());
    if (w.experts.clamped) add_down_biases(as_tokens(sum), w.experts, made);
    result = residual.defined() ? at::add_out(result, sum, residual) : sum;
  }
  if (options.recompute_experts) made.inner.reset(), made.up_lowered.reset();
  if (saved != nullptr) *saved = std::move(made);
  return result;
}

void form_inner(const at::Tensor& x, const DecoderBlockWeights& w,
                const DecoderBlockOptions& options, ExpertsSaved& saved) {
  if (saved.inner.defined()) return;
  const AdaptersOf adapters(w, options, saved.order, x);
  const at::Tensor rows = ops::dispatch_rows(all_tokens(x, saved), saved.order);
  saved.inner = ops::grouped_product(rows, by_inputs(w.experts.up, w.experts), saved.order.ends);
  saved.up_lowered = adapters.up.lower(rows);
  adapters.up.add_lifted(saved.inner, saved.up_lowered);
  if (w.experts.clamped) add_up_biases(w.experts, saved);
}

ExpertsBackward experts_backward(const at::Tensor& gradient, const DecoderBlockWeights& w,
                                 const DecoderBlockWeights& g, const DecoderBlockOptions& options,
                                 const ExpertsSaved& saved, const at::Tensor& of_sums) {
  const ops::Routing& routing = saved.routing;
  const ops::ExpertOrder& order = saved.order;
  const AdaptersOf adapters(w, options, order, gradient);
  const TokenExchange exchange(options.expert_axis, as_tokens(gradient).size(0),
                               options.expert_tokens);
  ExpertsBackward result;
  at::Tensor by_token;  // gradients of weights
  {
    const at::Tensor drows = ops::dispatch_rows(exchange.gather(as_tokens(gradient)), order);
    const at::Tensor dactive =
        ops::grouped_product(drows, by_outputs(w.experts.down, w.experts), order.ends);
    const at::Tensor dlowered = adapters.down.back(drows, dactive);
    const ops::WeightedSwigluBackward back = activation_backward_(dactive, saved, w.experts);
    result.dinner = back.gate_up;
    by_token = exchange.scatter_sum(back.weights);
    if (g.experts.down.defined()) {
      add_weight_gradient(drows, back.output, order, w.experts, g.experts.down);
    }
    if (dlowered.defined()) {
      adapters.down.add_gradients(drows, back.output, adapters.down.lower(back.output), dlowered,
                                  g.experts.down_adapters);
    }
  }
  if (w.experts.clamped) {
    by_token += down_biases_backward(as_tokens(gradient), w.experts, g.experts, saved);
  }
  at::Tensor dlogits = ops::route_backward(by_token, routing, options.routing);
  // Once on a tensor axis, whose ranks' parts are added up. Sigmoids have no losses.
  if (of_sums.defined() && options.axis.rank() == 0 && !options.routing.sigmoid) {
    dlogits =
        dlogits + ops::router_sums_backward(of_sums, routing, saved.log_sum_exp, saved.counted);
  }
  result.dlogits = dlogits.to(gradient.scalar_type());
  const at::Tensor drows =
      ops::grouped_product(result.dinner, by_outputs(w.experts.up, w.experts), order.ends);
  result.dlowered = adapters.up.back(result.dinner, drows);
  const at::Tensor dx = exchange.scatter_sum(ops::combine_rows(drows, order, saved.foreign));
  dx.addmm_(result.dlogits, w.experts.router);
  result.dx = dx.view(gradient.sizes());
  return result;
}

void add_expert_gradients(const at::Tensor& x, const ExpertsBackward& backward,
                          const DecoderBlockWeights& w, const DecoderBlockWeights& g,
                          const DecoderBlockOptions& options, const ExpertsSaved& saved) {
  const at::Tensor tokens = as_tokens(x);
  if (g.experts.router.defined()) {
    ops::linear_backward_weight(backward.dlogits, tokens, g.experts.router);
  }
  if (w.experts.clamped) add_bias_gradients(backward, saved, g.experts);
  const AdaptersOf adapters(w, options, saved.order, x);
  if (!g.experts.up.defined() && !adapters.up.any()) return;
  const at::Tensor rows = ops::dispatch_rows(all_tokens(x, saved), saved.order);
  if (g.experts.up.defined()) {
    add_weight_gradient(backward.dinner, rows, saved.order, w.experts, g.experts.up);
  }
  adapters.up.add_gradients(backward.dinner, rows, saved.up_lowered, backward.dlowered,
                            g.experts.up_adapters);
}

at::Tensor experts(const at::Tensor& x, const DecoderBlockWeights& w,
                   const DecoderBlockOptions& options) {
  if (!at::GradMode::is_enabled()) {
    return experts_forward(x.contiguous(), {}, w, options, nullptr);
  }
  std::vector<at::Tensor> seen;
  for_each_tensor_of_experts(w.experts, [&](const at::Tensor& weight) { seen.push_back(weight); });
  const variable_list results = Experts::apply(x, at::TensorList(seen), w, options);
  if (results.size() > 1) *options.router_sums = results[1];
  return results[0];
}

}  // namespace tessera::detail
