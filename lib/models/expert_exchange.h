// SPDX-License-Identifier: MIT
#pragma once
// Exchange of tokens between ranks that own a part of a layer's experts each. Every rank gathers
// the tokens of all, computes those rows whose expert is its own, and the ranks add up their
// results (all-gather, reduce-scatter). Sizes do not depend on the routing, so the host waits for
// nothing.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"
#include "lib/ops/routing.h"

namespace tessera::detail {

class ExpertExchange {
 public:
  // tokens: this rank's. Throws Error(kInternal) if it has more than options.expert_tokens.
  ExpertExchange(const DecoderBlockOptions& options, int64_t tokens);

  bool on() const { return ranks_ != nullptr; }
  // x [tokens, n] of every rank, filled up with zeros to the longest: [all tokens, n].
  at::Tensor gather(const at::Tensor& x) const;
  // The inverse: the ranks' sum of [all tokens, n], of this rank's tokens: [tokens, n].
  at::Tensor scatter_sum(const at::Tensor& all) const;

  // Every rank's tokens as this rank routes them. Its experts have numbers from 0.
  struct Routed {
    at::Tensor experts;  // int64 [all tokens, experts_per_token]; `count` for those of other ranks
    at::Tensor weights;  // likewise; 0 for those
    at::Tensor foreign;  // bool, likewise: whether the expert is another rank's
  };
  // count: experts of a rank.
  Routed gather(const ops::Routing& routing, int64_t count) const;

 private:
  Communicator* ranks_ = nullptr;  // null: one rank
  int64_t tokens_, of_each_ = 0;
};

// The order of rows of this rank's experts. Rows of other experts lie behind them all and have no
// values.
ops::ExpertOrder own_order(const ExpertExchange::Routed& routed, int64_t count);
// ops::combine() without the rows of other ranks' experts, [tokens, experts_per_token] bool.
at::Tensor combine_own(const at::Tensor& rows, const ops::ExpertOrder& order,
                       const at::Tensor& foreign);

}  // namespace tessera::detail
