// SPDX-License-Identifier: MIT
#pragma once
// Exchange of tokens between ranks with micro-batches of their own, of one size on all of them.
// Without autograd.
#include <ATen/core/Tensor.h>

namespace tessera {

class Communicator;

class TokenExchange {
 public:
  // ranks: null for this rank alone. tokens: this rank's; most: those of any rank, 0 for as many as
  // this rank's. Throws Error(kInternal) if this rank has more.
  TokenExchange(Communicator* ranks, int64_t tokens, int64_t most);

  bool on() const { return ranks_ != nullptr; }
  int64_t rank() const;  // 0 if off
  // x [tokens, n] of every rank, padded with zeros to `most`: [all tokens, n]. x itself if off.
  at::Tensor gather(const at::Tensor& x) const;
  // The inverse: the ranks' sum of [all tokens, n], of this rank's tokens: [tokens, n].
  at::Tensor scatter_sum(const at::Tensor& all) const;

 private:
  Communicator* ranks_;
  int64_t tokens_, most_;
};

}  // namespace tessera
