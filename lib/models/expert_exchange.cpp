// SPDX-License-Identifier: MIT
#include "lib/models/expert_exchange.h"

#include <ATen/ATen.h>

namespace tessera::detail {

// Numbers of experts are exact in fp32, so that one message has both.
RoutedTokens gather_routing(const ops::Routing& routing, int64_t count,
                            const TokenExchange& exchange) {
  const int64_t chosen = routing.experts.size(1);
  // From 1, as padding has zeros.
  const at::Tensor numbers = (routing.experts + 1).to(routing.weights.scalar_type());
  const at::Tensor all = exchange.gather(at::cat({numbers, routing.weights}, 1));
  const at::Tensor experts = all.narrow(1, 0, chosen).to(at::kLong) - (1 + exchange.rank() * count);
  const at::Tensor foreign = experts.lt(0).logical_or(experts.ge(count));
  return {.experts = experts.masked_fill(foreign, count),
          .weights = all.narrow(1, chosen, chosen).masked_fill(foreign, 0),
          .foreign = foreign};
}

ops::ExpertOrder own_order(const RoutedTokens& routed, int64_t count) {
  ops::ExpertOrder order = ops::expert_order(routed.experts, count + 1);
  order.ends = order.ends.narrow(0, 0, count);
  return order;
}

}  // namespace tessera::detail
