// SPDX-License-Identifier: MIT
#include "lib/models/cut_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <vector>

#include "lib/model/context_collectives.h"
#include "lib/models/alibi_padding.h"
#include "lib/ops/piece_attention.h"
#include "tessera/core/error.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

using ops::QueriesKeysValues;
using ops::SelfAttention;

// kAuto resolved: equal on all ranks.
bool exchanges_heads(const SelfAttention& attention, const CutRows& cut) {
  const int64_t ranks = place_on(*cut.ranks).size;
  const bool divide = attention.heads % ranks == 0 && attention.key_heads % ranks == 0;
  check(divide || cut.attention != ContextAttention::kHeads, ErrorCode::kInvalidArgument,
        "--context_attention heads: ", attention.heads, " query heads and ", attention.key_heads,
        " key heads of a rank do not divide among the ", ranks,
        " ranks of the context axis; use --context_attention keys");
  return divide && cut.attention != ContextAttention::kKeys;
}

// Heads of every tensor grouped by the rank that gets them, side by side: [batch, own, ranks, n],
// in memory by rank first, as they are sent.
at::Tensor by_destination(const QueriesKeysValues& given, int64_t ranks) {
  std::vector<at::Tensor> groups;
  for (const at::Tensor* x : {&given.q, &given.k, &given.v}) {
    groups.push_back(x->unflatten(2, {ranks, -1}).flatten(3).permute({2, 0, 1, 3}));
  }
  return at::cat(groups, 3).permute({1, 2, 0, 3});
}

// What ALiBi adds for queries that the mask leaves without keys; blind: of the queries. Rows of
// padding that make up pieces do not count.
at::Tensor context_of_blind(const QueriesKeysValues& given, const at::Tensor& blind,
                            const CutRows& cut) {
  return blind_context({given.q, given.k.narrow(1, 0, cut.given), given.v.narrow(1, 0, cut.given)},
                       blind.unsqueeze(2).to(given.q.scalar_type()));
}

// bool [batch, sequence]
at::Tensor blind_queries(const CutRows& cut) { return cut.attention_mask.cumsum(1).eq(0); }

// ALiBi by its kernels, whose scores are q . k / sqrt(d).
at::Tensor alibi_context(const QueriesKeysValues& given, const SelfAttention& attention,
                         const at::Tensor& slopes, const CutRows& cut, bool uniform) {
  const int64_t groups = given.q.size(2) / given.k.size(2);
  const auto by_head = [&](const at::Tensor& x) {
    return groups == 1 ? x : x.repeat_interleave(groups, 2);
  };
  const double factor = attention.scale * std::sqrt(static_cast<double>(given.q.size(3)));
  const at::Tensor q = std::abs(factor - 1) < 1e-12 ? given.q : given.q * factor;
  const at::Tensor qkv = at::stack({q, by_head(given.k), by_head(given.v)}, 3).flatten(2);
  const at::Tensor context = ops::alibi_attention(qkv, slopes, cut.attention_mask, cut.packed);
  if (!uniform || !cut.attention_mask.defined()) return context;
  return context + context_of_blind(given, blind_queries(cut), cut);
}

// Whole rows of the rank's share of the heads.
at::Tensor attend_by_heads(const QueriesKeysValues& given, const SelfAttention& attention,
                           const CutRows& cut, bool uniform) {
  const int64_t ranks = place_on(*cut.ranks).size, d = given.q.size(3);
  const int64_t heads = attention.heads / ranks, key_heads = attention.key_heads / ranks;
  const at::Tensor all = tokens_to_heads(by_destination(given, ranks), *cut.ranks)
                             .unflatten(2, {heads + 2 * key_heads, d});
  const auto parts = all.split_with_sizes({heads, key_heads, key_heads}, 2);
  const QueriesKeysValues own{parts[0], parts[1], parts[2]};
  ops::CausalAttentionOptions options{.scale = attention.scale, .window = attention.window};
  if (attention.slopes.defined()) {
    options.slopes = attention.slopes.narrow(0, place_on(*cut.ranks).rank * heads, heads);
  }
  const bool alibi = options.slopes.defined() && options.window == 0;
  const at::Tensor context =
      alibi ? alibi_context(own, attention, options.slopes, cut, uniform)
            : ops::causal_attention(own.q, own.k, own.v, cut.attention_mask, options, cut.packed);
  return heads_to_tokens(context, *cut.ranks).flatten(2);
}

// Own queries of all heads, piece by piece, to the keys up to each piece.
at::Tensor attend_by_keys(const QueriesKeysValues& given, const SelfAttention& attention,
                          const CutRows& cut, bool uniform,
                          const std::shared_ptr<KeptTensors>& kept) {
  const int64_t key_heads = attention.key_heads, d = given.k.size(3);
  const at::Tensor all = gather_row(at::cat({given.k, given.v}, 2).flatten(2), *cut.ranks)
                             .unflatten(2, {2 * key_heads, d});
  const auto [rank, ranks] = place_on(*cut.ranks);
  const int64_t piece = cut.sequence / (2 * ranks);
  const at::Tensor context = ops::piece_attention(
      given.q, all, {{rank * piece, piece}, {(2 * ranks - 1 - rank) * piece, piece}},
      {.scale = attention.scale,
       .window = attention.window,
       .slopes = attention.slopes,
       .packed = cut.packed,
       .attention_mask = cut.attention_mask,
       .kept = kept,
       .is_again = at::GradMode::is_enabled()});
  if (!uniform || !cut.attention_mask.defined()) return context;
  const at::Tensor blind = blind_queries(cut).index_select(1, cut.columns);
  return context + context_of_blind(
                       {given.q, all.narrow(2, 0, key_heads), all.narrow(2, key_heads, key_heads)},
                       blind, cut);
}

}  // namespace

QueriesKeysValues split_at_once(const at::Tensor& qkv, const SelfAttention& attention) {
  const int64_t heads = attention.heads, key_heads = attention.key_heads;
  const at::Tensor by_head = qkv.unflatten(2, {heads + 2 * key_heads, -1});
  const auto parts = attention.by_head ? by_head.unflatten(2, {heads, 3}).unbind(3)
                                       : by_head.split_with_sizes({heads, key_heads, key_heads}, 2);
  return {parts[0], parts[1], parts[2]};
}

at::Tensor attend_to_cut_rows(const QueriesKeysValues& given, const SelfAttention& attention,
                              const CutRows& cut, bool uniform,
                              const std::shared_ptr<KeptTensors>& kept) {
  return exchanges_heads(attention, cut) ? attend_by_heads(given, attention, cut, uniform)
                                         : attend_by_keys(given, attention, cut, uniform, kept);
}

void require_no_dropout(const BlockContext& context, double probability) {
  check(context.cut_rows == nullptr || !context.training || probability == 0,
        ErrorCode::kInvalidArgument, "dropout of ", probability,
        " is not built for --context_parallel ",
        context.cut_rows ? place_on(*context.cut_rows->ranks).size : 1,
        " yet; train without dropout, or use --context_parallel 1");
}

}  // namespace tessera
