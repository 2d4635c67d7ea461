// SPDX-License-Identifier: MIT
#include "lib/ops/piece_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "lib/ops/attention_kernel.h"
#include "lib/ops/counted.h"

namespace tessera::ops {
namespace {

// Columns of the keys that any query of the piece sees: first, count.
struct KeyRange {
  int64_t first, count;
};

KeyRange keys_in_reach(const PieceOfRows& piece, int64_t queries) {
  const int64_t first =
      piece.window > 0 ? std::max<int64_t>(piece.first_query - piece.window + 1, 0) : 0;
  return {first, piece.first_query + queries - first};
}

// bool [batch or 1, 1, queries, keys]
at::Tensor visible(const PieceOfRows& piece, int64_t queries, const KeyRange& keys,
                   const at::Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor query =
      at::arange(piece.first_query, piece.first_query + queries, options).unsqueeze(1);
  const at::Tensor key = at::arange(keys.first, keys.first + keys.count, options);
  at::Tensor seen = key.le(query);
  if (piece.window > 0) seen = seen.logical_and(key.gt(query - piece.window));
  seen = seen.unsqueeze(0);
  if (piece.first_keys.defined()) seen = seen.logical_and(key.ge(piece.first_keys.unsqueeze(2)));
  if (piece.attention_mask.defined()) {
    seen = seen.logical_and(piece.attention_mask.narrow(1, keys.first, keys.count).unsqueeze(1));
  }
  return seen.unsqueeze(1);
}

// slope (j - i): [heads, queries, keys]
at::Tensor distances(const PieceOfRows& piece, int64_t queries, const KeyRange& keys,
                     const at::TensorOptions& options) {
  const at::Tensor query =
      at::arange(piece.first_query, piece.first_query + queries, options).unsqueeze(1);
  const at::Tensor key = at::arange(keys.first, keys.first + keys.count, options);
  return (key - query) * piece.slopes.to(options).view({-1, 1, 1});
}

at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

at::Tensor piece_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const PieceOfRows& piece) {
  const int64_t queries = q.size(1), groups = q.size(2) / k.size(2);
  const KeyRange reach = keys_in_reach(piece, queries);
  // Distances in 16 bits would be rounded.
  const auto dtype = piece.slopes.defined() ? wide(q) : q.scalar_type();
  const auto of_heads = [&](const at::Tensor& x) {
    const at::Tensor part = x.narrow(1, reach.first, reach.count).to(dtype);
    return (groups > 1 ? part.repeat_interleave(groups, 2) : part).transpose(1, 2);
  };
  at::Tensor seen = visible(piece, queries, reach, q), blind;
  if (piece.attention_mask.defined()) {
    blind = seen.any(3).logical_not();  // [batch, 1, queries]
    seen = seen.logical_or(blind.unsqueeze(3));
  }
  at::Tensor mask = seen;
  if (piece.slopes.defined()) {
    mask = distances(piece, queries, reach, q.options().dtype(dtype))
               .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  const AttentionArguments all{.query = q.to(dtype).transpose(1, 2),
                               .key = of_heads(k),
                               .value = of_heads(v),
                               .mask = mask,
                               .scale = piece.scale};
  at::Tensor context = q.is_meta()
                           ? counted_attention(all)
                           : at::scaled_dot_product_attention(all.query, all.key, all.value,
                                                              all.mask, 0, false, all.scale);
  context = context.transpose(1, 2);
  if (blind.defined()) context = context.masked_fill(blind.transpose(1, 2).unsqueeze(3), 0.0);
  return context.flatten(2).to(q.scalar_type());
}

}  // namespace tessera::ops
