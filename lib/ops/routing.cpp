// SPDX-License-Identifier: MIT
#include "lib/ops/routing.h"

#include <ATen/ATen.h>

#include <limits>
#include <tuple>
#include <vector>

#include "lib/core/meta.h"
#include "lib/ops/wide.h"
#include "tessera/core/error.h"

namespace tessera::ops {
namespace {

constexpr double kLeastSum = 1e-20;

// The slots in order of their experts, and the ends of the experts' rows.
ExpertOrder counted_on_host(const at::Tensor& experts, int64_t expert_count) {
  const int64_t slots = experts.numel();
  ExpertOrder order{.slots = at::empty({slots}, at::kLong),
                    .ends = at::empty({expert_count}, at::kInt)};
  const at::Tensor flat = experts.contiguous().view(-1);
  const auto* const expert_of = flat.const_data_ptr<int64_t>();
  std::vector<int64_t> next(static_cast<size_t>(expert_count) + 1, 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    check(expert_of[slot] >= 0 && expert_of[slot] < expert_count, ErrorCode::kInternal,
          "a token is routed to expert ", expert_of[slot], " of ", expert_count);
    ++next[static_cast<size_t>(expert_of[slot]) + 1];
  }
  auto* const ends = order.ends.mutable_data_ptr<int32_t>();
  for (size_t expert = 0; expert < static_cast<size_t>(expert_count); ++expert) {
    next[expert + 1] += next[expert];
    ends[expert] = static_cast<int32_t>(next[expert + 1]);
  }
  auto* const sorted = order.slots.mutable_data_ptr<int64_t>();
  for (int64_t slot = 0; slot < slots; ++slot) {
    sorted[next[static_cast<size_t>(expert_of[slot])]++] = slot;
  }
  return order;
}

ExpertOrder sorted_on_device(const at::Tensor& experts, int64_t expert_count) {
  const at::Tensor flat = experts.reshape({-1}).to(at::kInt);
  auto [sorted, slots] = at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  if (flat.is_meta()) return {.slots = slots, .ends = at::empty({expert_count}, flat.options())};
  const at::Tensor numbers = at::arange(expert_count, flat.options());
  return {.slots = slots,
          .ends = at::searchsorted(sorted, numbers, /*out_int32=*/true, /*right=*/true)};
}

// Of the chosen experts' scores. Sigmoids may all be tiny, as transformers has it.
at::Tensor sum_of(const at::Tensor& chosen, const RoutingOptions& options) {
  const at::Tensor sum = chosen.sum(-1, /*keepdim=*/true);
  return options.sigmoid ? sum + kLeastSum : sum;
}

}  // namespace

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor turned = weight.t();
  const at::ScalarType dtype = wide(x);
  if (x.scalar_type() == dtype) return x.mm(turned);
  if (runs_on_gpu(x)) return x.is_meta() ? x.mm(turned).to(dtype) : at::mm(x, turned, dtype);
  return x.to(dtype).mm(turned.to(dtype));
}

Routing route(const at::Tensor& logits, const RoutingOptions& options) {
  Routing routing{.probabilities = options.sigmoid ? logits.sigmoid() : logits.softmax(-1)};
  const at::Tensor& scores = routing.probabilities;
  if (options.bias.defined()) {
    routing.experts = std::get<1>((scores + options.bias).topk(options.experts_per_token, -1));
    routing.weights = scores.gather(-1, routing.experts);
  } else {
    std::tie(routing.weights, routing.experts) = scores.topk(options.experts_per_token, -1);
  }
  if (options.normalised) routing.weights = routing.weights / sum_of(routing.weights, options);
  if (options.scale != 1) routing.weights = routing.weights * options.scale;
  return routing;
}

at::Tensor route_backward(const at::Tensor& gradient, const Routing& routing,
                          const RoutingOptions& options) {
  const at::Tensor chosen = routing.probabilities.gather(-1, routing.experts);
  at::Tensor dchosen = options.scale != 1 ? gradient * options.scale : gradient;
  if (options.normalised) {  // of scale * chosen / sum
    const at::Tensor common = (gradient * routing.weights).sum(-1, /*keepdim=*/true);
    dchosen = (dchosen - common) / sum_of(chosen, options);
  }
  if (options.sigmoid) {
    return at::zeros_like(routing.probabilities)
        .scatter(-1, routing.experts, dchosen * chosen * (1 - chosen));
  }
  const at::Tensor common = (dchosen * chosen).sum(-1, /*keepdim=*/true);
  const at::Tensor all =
      at::zeros_like(routing.probabilities).scatter(-1, routing.experts, dchosen);
  return routing.probabilities * (all - common);
}

ExpertOrder expert_order(const at::Tensor& experts, int64_t expert_count) {
  const int64_t chosen = experts.size(-1);
  check(experts.numel() <= std::numeric_limits<int32_t>::max(), ErrorCode::kInvalidArgument,
        "experts of one micro-batch have ", experts.numel(), " rows; at most ",
        std::numeric_limits<int32_t>::max(), " can be counted");
  ExpertOrder order = experts.is_cpu() ? counted_on_host(experts, expert_count)
                                       : sorted_on_device(experts, expert_count);
  order.tokens = order.slots.floor_divide(chosen);
  const at::Tensor numbers = at::arange(order.slots.numel(), order.slots.options());
  order.rows = at::empty_like(order.slots).scatter_(0, order.slots, numbers).view(experts.sizes());
  return order;
}

}  // namespace tessera::ops
