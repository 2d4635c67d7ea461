// SPDX-License-Identifier: MIT
#include "lib/model/token_exchange.h"

#include <ATen/ATen.h>

#include "lib/comm/operation_scope.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera {

TokenExchange::TokenExchange(Communicator* ranks, int64_t tokens, int64_t most)
    : ranks_(ranks), tokens_(tokens), most_(most > 0 ? most : tokens) {
  check(ranks_ == nullptr || tokens_ <= most_, ErrorCode::kInternal, "a micro-batch of ", tokens_,
        " tokens on an axis whose ranks agreed on at most ", most_);
}

int64_t TokenExchange::rank() const { return on() ? ranks_->rank() : 0; }

at::Tensor TokenExchange::gather(const at::Tensor& x) const {
  if (!on()) return x;
  const ForTensor of("tokens of experts");
  const DataDecides the(DecidedByData::kCount);  // the rank with most tokens
  const at::Tensor all = at::empty({ranks_->size() * most_, x.size(1)}, x.options());
  const at::Tensor own = all.narrow(0, rank() * most_, most_);
  own.narrow(0, 0, tokens_).copy_(x);
  own.narrow(0, tokens_, most_ - tokens_).zero_();
  ranks_->all_gather(all, own).wait();
  return all;
}

at::Tensor TokenExchange::scatter_sum(const at::Tensor& all) const {
  if (!on()) return all;
  const ForTensor of("sums of experts");
  const DataDecides the(DecidedByData::kCount);
  const at::Tensor own = at::empty({most_, all.size(1)}, all.options());
  ranks_->reduce_scatter(own, all.contiguous()).wait();
  return own.narrow(0, 0, tokens_);
}

}  // namespace tessera
