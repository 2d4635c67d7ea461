// SPDX-License-Identifier: MIT
#pragma once
// Rows of a rank that owns a part of a layer's experts. Every rank gathers the tokens of all,
// computes those rows whose expert is its own, and the ranks add up their results (all-gather,
// reduce-scatter). Sizes do not depend on the routing, so the host waits for nothing.
#include <ATen/core/Tensor.h>

#include "lib/model/token_exchange.h"
#include "lib/ops/routing.h"

namespace tessera::detail {

// All ranks' tokens as this rank routes them. Its experts have numbers from 0.
struct RoutedTokens {
  at::Tensor experts;  // int64 [all tokens, experts_per_token]; `count` for those of other ranks
  at::Tensor weights;  // likewise; 0 for those
  at::Tensor foreign;  // bool, likewise: whether the expert is another rank's
};
// count: experts of a rank. Collective.
RoutedTokens gather_routing(const ops::Routing& routing, int64_t count,
                            const TokenExchange& exchange);

// The order of rows of this rank's experts. Rows of other experts lie behind them all and have no
// values.
ops::ExpertOrder own_order(const RoutedTokens& routed, int64_t count);

}  // namespace tessera::detail
