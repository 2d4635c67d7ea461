// SPDX-License-Identifier: MIT
#pragma once
// Autograd functions over a context axis of N ranks, each with pieces r and 2 N - 1 - r of every
// row (tessera/model/cut_rows.h). Every rank calls the same ones in the same order.
#include <ATen/core/Tensor.h>

namespace tessera {

class Communicator;

// This rank's place on the axis.
struct ContextPlace {
  int rank, size;
};
ContextPlace place_on(const Communicator& ranks);

// Tokens that this rank may have.
struct OwnTokens {
  at::Tensor index;  // int64, of a column in the rank's tokens; 0 for other ranks' columns
  at::Tensor own;    // bool, whether the rank has it
};
// columns: int64, of whole rows; tokens: this rank's of every row.
OwnTokens own_tokens_of(const at::Tensor& columns, int64_t tokens, ContextPlace place);

// All-gather of own tokens [batch, own, n] to whole rows [batch, N own, n] / reduce-scatter: every
// rank's gradient of all tokens is partial.
at::Tensor gather_row(const at::Tensor& x, Communicator& ranks);
// Own tokens of all heads, grouped by rank, to whole rows of the rank's share [batch, own, N, n] ->
// [batch, N own, n] / the inverse. One all_to_all each.
at::Tensor tokens_to_heads(const at::Tensor& x, Communicator& ranks);
// The inverse of tokens_to_heads(): [batch, N own, n] -> [batch, own, N, n].
at::Tensor heads_to_tokens(const at::Tensor& x, Communicator& ranks);

// The sum over the ranks, without a gradient.
at::Tensor sum_of_ranks(const at::Tensor& x, Communicator& ranks);

}  // namespace tessera
