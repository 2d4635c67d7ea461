// SPDX-License-Identifier: MIT
#include "lib/models/expert_exchange.h"

#include <ATen/ATen.h>

#include "lib/comm/operation_scope.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera::detail {

ExpertExchange::ExpertExchange(const DecoderBlockOptions& options, int64_t tokens)
    : ranks_(options.expert_axis), tokens_(tokens) {
  if (ranks_ == nullptr) return;
  of_each_ = options.expert_tokens > 0 ? options.expert_tokens : tokens;
  check(tokens_ <= of_each_, ErrorCode::kInternal, "a micro-batch of ", tokens_,
        " tokens on an expert axis whose ranks agreed on at most ", of_each_);
}

at::Tensor ExpertExchange::gather(const at::Tensor& x) const {
  if (!on()) return x;
  const ForTensor of("tokens of experts");
  const at::Tensor all = at::empty({ranks_->size() * of_each_, x.size(1)}, x.options());
  const at::Tensor own = all.narrow(0, ranks_->rank() * of_each_, of_each_);
  own.narrow(0, 0, tokens_).copy_(x);
  own.narrow(0, tokens_, of_each_ - tokens_).zero_();
  ranks_->all_gather(all, own).wait();
  return all;
}

at::Tensor ExpertExchange::scatter_sum(const at::Tensor& all) const {
  if (!on()) return all;
  const ForTensor of("sums of experts");
  const at::Tensor own = at::empty({of_each_, all.size(1)}, all.options());
  ranks_->reduce_scatter(own, all.contiguous()).wait();
  return own.narrow(0, 0, tokens_);
}

// Numbers of experts are exact in fp32, so that one message has both.
ExpertExchange::Routed ExpertExchange::gather(const ops::Routing& routing, int64_t count) const {
  const int64_t chosen = routing.experts.size(1);
  // From 1, as tokens that fill up have zeros.
  const at::Tensor numbers = (routing.experts + 1).to(routing.weights.scalar_type());
  const at::Tensor all = gather(at::cat({numbers, routing.weights}, 1));
  const at::Tensor experts = all.narrow(1, 0, chosen).to(at::kLong) - (1 + ranks_->rank() * count);
  const at::Tensor foreign = experts.lt(0).logical_or(experts.ge(count));
  return {.experts = experts.masked_fill(foreign, count),
          .weights = all.narrow(1, chosen, chosen).masked_fill(foreign, 0),
          .foreign = foreign};
}

ops::ExpertOrder own_order(const ExpertExchange::Routed& routed, int64_t count) {
  ops::ExpertOrder order = ops::expert_order(routed.experts, count + 1);
  order.ends = order.ends.narrow(0, 0, count);
  return order;
}

at::Tensor combine_own(const at::Tensor& rows, const ops::ExpertOrder& order,
                       const at::Tensor& foreign) {
  if (!foreign.defined()) return ops::combine(rows, order);
  const at::Tensor by_slot = rows.index_select(0, order.rows.view(-1))
                                 .view({order.rows.size(0), order.rows.size(1), rows.size(1)});
  return by_slot.masked_fill_(foreign.unsqueeze(2), 0).sum(1);
}

}  // namespace tessera::detail
