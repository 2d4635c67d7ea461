// SPDX-License-Identifier: MIT
#include "lib/ops/score_attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "lib/ops/random.h"

namespace tessera::ops {
namespace {

// [1, heads, 1, 1]
at::Tensor by_head(const at::Tensor& numbers, at::ScalarType type) {
  return numbers.to(type).view({1, -1, 1, 1});
}

at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const Piece& piece,
                     at::ScalarType wide, const CausalAttentionOptions& options) {
  at::Tensor scores = (at::matmul(q, k.transpose(2, 3)) * options.scale).to(wide);
  if (options.softcap > 0) scores = (scores / options.softcap).tanh() * options.softcap;
  if (!options.slopes.defined()) return scores;
  const auto place = scores.options();
  const at::Tensor keys = at::arange(piece.first_key, piece.first_key + piece.keys, place),
                   queries =
                       at::arange(piece.first_query, piece.first_query + piece.queries, place);
  return scores + by_head(options.slopes, wide) * (keys - queries.unsqueeze(1));
}

// The last score of each query is its head's sink, whose value is 0.
at::Tensor softmax_with_sinks(const at::Tensor& scores, const at::Tensor& sinks) {
  const at::Tensor last =
      by_head(sinks, scores.scalar_type()).expand({scores.size(0), -1, scores.size(2), 1});
  return at::cat({scores, last}, 3).softmax(3).narrow(3, 0, scores.size(3));
}

}  // namespace

at::Tensor attend_by_scores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& seen, const Piece& piece, int64_t n,
                            const CausalAttentionOptions& options) {
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor scores =
      scores_of(q, k, piece, wide, options)
          .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  at::Tensor probability =
      options.sinks.defined() ? softmax_with_sinks(scores, options.sinks) : scores.softmax(3);
  if (options.dropout > 0) {
    probability = probability *
                  attention_factors({q.size(0), q.size(1), n, n}, wide,
                                    {options.dropout, options.seed, options.first_head}, q.device())
                      .narrow(2, piece.first_query, piece.queries)
                      .narrow(3, piece.first_key, piece.keys);
  }
  return at::matmul(probability.to(q.scalar_type()), v);
}

}  // namespace tessera::ops
