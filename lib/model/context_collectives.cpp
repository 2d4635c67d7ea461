// SPDX-License-Identifier: MIT
#include "lib/model/context_collectives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "lib/ops/saved_value.h"
#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Every rank's tokens [ranks, batch, own, n] as whole rows [batch, ranks own, n].
at::Tensor in_order(const at::Tensor& parts) {
  const at::Tensor halves = parts.unflatten(2, {2, parts.size(2) / 2});
  return at::cat({halves.select(2, 0), halves.select(2, 1).flip(0)}).transpose(0, 1).flatten(1, 2);
}

// The inverse of in_order().
at::Tensor by_rank(const at::Tensor& rows, int64_t ranks) {
  const int64_t count = 2 * ranks;
  const at::Tensor pieces = rows.unflatten(1, {count, rows.size(1) / count}).transpose(0, 1);
  return at::stack({pieces.narrow(0, 0, ranks), pieces.narrow(0, ranks, ranks).flip(0)}, 2)
      .flatten(2, 3);
}

at::Tensor all_to_all(const at::Tensor& parts, Communicator& ranks) {
  const at::Tensor received = at::empty(parts.sizes(), parts.options());
  ranks.all_to_all(received, parts.contiguous()).wait();
  return received;
}

at::Tensor to_heads(const at::Tensor& x, Communicator& ranks) {
  return in_order(all_to_all(x.permute({2, 0, 1, 3}), ranks));
}

at::Tensor to_tokens(const at::Tensor& x, Communicator& ranks) {
  return all_to_all(by_rank(x.contiguous(), ranks.size()), ranks)
      .permute({1, 2, 0, 3})
      .contiguous();
}

void keep(AutogradContext* context, Communicator* ranks) { save_value(context, "ranks", ranks); }
Communicator& kept(AutogradContext* context) {
  return *saved_value<Communicator*>(context, "ranks");
}

class GatherRow : public Function<GatherRow> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* ranks) {
    keep(context, ranks);
    const at::Tensor own = x.contiguous();
    const at::Tensor parts =
        at::empty({ranks->size(), own.size(0), own.size(1), own.size(2)}, own.options());
    ranks->all_gather(parts, own).wait();
    return in_order(parts);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Communicator& ranks = kept(context);
    const at::Tensor parts = by_rank(gradients[0].contiguous(), ranks.size()).contiguous();
    const at::Tensor own = at::empty_like(parts[0]);
    ranks.reduce_scatter(own, parts).wait();
    return {own, {}};
  }
};

class TokensToHeads : public Function<TokensToHeads> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* ranks) {
    keep(context, ranks);
    return to_heads(x, *ranks);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {to_tokens(gradients[0], kept(context)), {}};
  }
};

class HeadsToTokens : public Function<HeadsToTokens> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* ranks) {
    keep(context, ranks);
    return to_tokens(x, *ranks);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {to_heads(gradients[0], kept(context)), {}};
  }
};

}  // namespace

ContextPlace place_on(const Communicator& ranks) { return {ranks.rank(), ranks.size()}; }

OwnTokens own_tokens_of(const at::Tensor& columns, int64_t tokens, ContextPlace place) {
  const int64_t piece = std::max<int64_t>(tokens / 2, 1);
  const int64_t first = place.rank * piece, second = (2 * place.size - 1 - place.rank) * piece;
  const at::Tensor in_first = columns.ge(first).logical_and(columns.lt(first + piece)),
                   in_second = columns.ge(second).logical_and(columns.lt(second + piece));
  return {(columns - first) * in_first + (columns - second + piece) * in_second,
          in_first.logical_or(in_second)};
}

at::Tensor gather_row(const at::Tensor& x, Communicator& ranks) {
  return GatherRow::apply(x, &ranks);
}

at::Tensor tokens_to_heads(const at::Tensor& x, Communicator& ranks) {
  return TokensToHeads::apply(x, &ranks);
}

at::Tensor heads_to_tokens(const at::Tensor& x, Communicator& ranks) {
  return HeadsToTokens::apply(x, &ranks);
}

at::Tensor sum_of_ranks(const at::Tensor& x, Communicator& ranks) {
  at::Tensor sum = x.detach().clone();
  ranks.all_reduce(sum).wait();
  return sum;
}

}  // namespace tessera
