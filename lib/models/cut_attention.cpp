// SPDX-License-Identifier: MIT
#include "lib/models/cut_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>
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
bool exchanges_heads(const at::Tensor& q, const SelfAttention& attention, const CutRows& cut) {
  const int64_t ranks = place_on(*cut.ranks).size;
  const bool divide = attention.heads % ranks == 0 && attention.key_heads % ranks == 0;
  check(divide || cut.attention != ContextAttention::kHeads, ErrorCode::kInvalidArgument,
        "--context_attention heads: ", attention.heads, " query heads and ", attention.key_heads,
        " key heads of a rank do not divide among the ", ranks,
        " ranks of the context axis; use --context_attention keys");
  const bool drops = attention.dropout.on();
  const bool forms_scores =
      drops || !ops::piece_kernels_take(
                   q, {.slopes = attention.slopes, .attention_mask = cut.attention_mask});
  const bool exchanges =
      cut.attention == ContextAttention::kAuto
          ? cut_attention_of(attention, ranks, forms_scores) == ContextAttention::kHeads
          : cut.attention == ContextAttention::kHeads;
  check(exchanges || !drops, ErrorCode::kInvalidArgument,
        "--context_attention keys has no dropout of attention probabilities, here ",
        attention.dropout.probability,
        "; use --context_attention heads with a --context_parallel "
        "that divides ",
        attention.heads, " query heads and ", attention.key_heads,
        " key heads of a rank, or train without this dropout");
  return exchanges;
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

// Queries, keys and values as one tensor, grouped by head, scaled as ALiBi's kernels expect.
at::Tensor joint_by_head(const QueriesKeysValues& given, double scale) {
  const int64_t groups = given.q.size(2) / given.k.size(2);
  const auto by_head = [&](const at::Tensor& x) {
    return groups == 1 ? x : x.repeat_interleave(groups, 2);
  };
  const double factor = scale * std::sqrt(static_cast<double>(given.q.size(3)));
  const at::Tensor q = std::abs(factor - 1) < 1e-12 ? given.q : given.q * factor;
  return at::stack({q, by_head(given.k), by_head(given.v)}, 3).flatten(2);
}

// The whole rows' mask and packing, as attention to them takes them.
struct WholeRows {
  at::Tensor mask;
  PackedRows packed;
};

// own: of the rank's share of the heads.
at::Tensor alibi_context(const QueriesKeysValues& given, const SelfAttention& own,
                         const WholeRows& rows, const CutRows& cut, bool uniform) {
  const at::Tensor qkv = joint_by_head(given, own.scale);
  if (own.dropout.on() && uniform && rows.mask.defined()) {
    SelfAttention joint = own;
    joint.key_heads = own.heads;
    joint.scale = 1 / std::sqrt(static_cast<double>(given.q.size(3)));
    return padded_alibi_attention(qkv, joint, rows.mask);
  }
  const at::Tensor context =
      ops::alibi_attention(qkv, own.slopes, rows.mask, rows.packed, own.dropout);
  if (!uniform || !rows.mask.defined()) return context;
  return context + context_of_blind(given, blind_queries(cut), cut);
}

at::Tensor context_of_heads(const QueriesKeysValues& given, const SelfAttention& own,
                            const WholeRows& rows, const CutRows& cut, bool uniform,
                            const at::Tensor& sinks) {
  if (own.slopes.defined() && own.window == 0) {
    return alibi_context(given, own, rows, cut, uniform);
  }
  const ops::AttentionDropout& dropout = own.dropout;
  return ops::causal_attention(given.q, given.k, given.v, rows.mask,
                               {.scale = own.scale,
                                .dropout = dropout.probability,
                                .seed = dropout.seed,
                                .first_head = dropout.first_head,
                                .window = own.window,
                                .sinks = sinks,
                                .slopes = own.slopes},
                               rows.packed);
}

// Packing of the columns before the padding that makes up pieces.
PackedRows without_padding(const PackedRows& padded, int64_t given) {
  std::vector<int64_t> lengths;
  int64_t column = 0;
  for (const int64_t length : padded.lengths) {
    if (column < given) lengths.push_back(std::min(length, given - column));
    column = (column + length) % padded.sequence;
  }
  PackedRows packed = make_packed_rows(std::move(lengths), given);
  for (at::Tensor* tensor : {&packed.offsets, &packed.positions, &packed.first_keys}) {
    *tensor = tensor->to(padded.offsets.device());
  }
  return packed;
}

// With dropout, which counts the columns of one rank's rows: without that padding.
at::Tensor context_of_given(const QueriesKeysValues& whole, const SelfAttention& own,
                            const CutRows& cut, bool uniform, const at::Tensor& sinks) {
  const auto given = [&](const at::Tensor& x) { return x.narrow(1, 0, cut.given); };
  WholeRows rows;
  if (cut.attention_mask.defined()) rows.mask = given(cut.attention_mask);
  if (cut.packed.defined()) rows.packed = without_padding(cut.packed, cut.given);
  const at::Tensor context = context_of_heads({given(whole.q), given(whole.k), given(whole.v)}, own,
                                              rows, cut, uniform, sinks);
  return at::constant_pad_nd(context, {0, 0, 0, cut.sequence - cut.given});
}

// attention: of own queries, or of the rank's share of the heads.
ops::PieceAttention piece_attention_of(const SelfAttention& attention, const CutRows& cut,
                                       const std::shared_ptr<KeptTensors>& kept,
                                       const at::Tensor& sinks) {
  return {.scale = attention.scale,
          .window = attention.window,
          .slopes = attention.slopes,
          .packed = cut.packed,
          .attention_mask = cut.attention_mask,
          .sinks = sinks,
          .kept = kept,
          .is_again = at::GradMode::is_enabled()};
}

// One piece, the whole row: by kernels that keep what backward needs of them. Of packed rows the
// usual attention is one kernel, here it would be one a row. Kernels with sinks are these alone.
bool keeps_of_heads(const at::Tensor& q, const SelfAttention& own,
                    const ops::PieceAttention& once) {
  if (once.sinks.defined()) return !own.dropout.on();
  return once.kept != nullptr && !own.dropout.on() && !once.packed.defined() &&
         ops::piece_kernels_take(q, once);
}

// Whole rows of the rank's share of the heads.
at::Tensor attend_by_heads(const QueriesKeysValues& given, const SelfAttention& attention,
                           const CutRows& cut, bool uniform,
                           const std::shared_ptr<KeptTensors>& kept, const at::Tensor& sinks) {
  const auto [rank, ranks] = place_on(*cut.ranks);
  const int64_t d = given.q.size(3);
  SelfAttention own = attention;
  own.heads = attention.heads / ranks;
  own.key_heads = attention.key_heads / ranks;
  own.by_head = true;
  own.dropout.first_head += rank * own.heads;
  if (attention.slopes.defined()) {
    own.slopes = attention.slopes.narrow(0, rank * own.heads, own.heads);
  }
  const at::Tensor all = tokens_to_heads(by_destination(given, ranks), *cut.ranks)
                             .unflatten(2, {own.heads + 2 * own.key_heads, d});
  const auto parts = all.split_with_sizes({own.heads, own.key_heads, own.key_heads}, 2);
  const QueriesKeysValues whole{parts[0], parts[1], parts[2]};
  const at::Tensor own_sinks =
      sinks.defined() ? sinks.narrow(0, rank * own.heads, own.heads) : sinks;
  const ops::PieceAttention once = piece_attention_of(own, cut, kept, own_sinks);
  at::Tensor context;
  if (keeps_of_heads(whole.q, own, once)) {
    context = ops::piece_attention(whole.q, all.narrow(2, own.heads, 2 * own.key_heads),
                                   {{0, cut.sequence}}, once);
  } else if (own.dropout.on()) {
    context = context_of_given(whole, own, cut, uniform, own_sinks);
  } else {
    context =
        context_of_heads(whole, own, {cut.attention_mask, cut.packed}, cut, uniform, own_sinks);
  }
  return heads_to_tokens(context, *cut.ranks).flatten(2);
}

// Own queries of all heads, piece by piece, to the keys up to each piece.
at::Tensor attend_by_keys(const QueriesKeysValues& given, const SelfAttention& attention,
                          const CutRows& cut, bool uniform,
                          const std::shared_ptr<KeptTensors>& kept, const at::Tensor& sinks) {
  const int64_t key_heads = attention.key_heads, d = given.k.size(3);
  const at::Tensor all = gather_row(at::cat({given.k, given.v}, 2).flatten(2), *cut.ranks)
                             .unflatten(2, {2 * key_heads, d});
  const auto [rank, ranks] = place_on(*cut.ranks);
  const int64_t piece = cut.sequence / (2 * ranks);
  const at::Tensor context = ops::piece_attention(
      given.q, all, {{rank * piece, piece}, {(2 * ranks - 1 - rank) * piece, piece}},
      piece_attention_of(attention, cut, kept, sinks));
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

ContextAttention cut_attention_of(const SelfAttention& attention, int64_t ranks,
                                  bool forms_scores) {
  const int64_t heads = attention.heads, key_heads = attention.key_heads;
  if (heads % ranks != 0 || key_heads % ranks != 0) return ContextAttention::kKeys;
  // Sent by a rank for each token, in units of 2 d (ranks - 1) / ranks numbers.
  const int64_t by_heads = heads + key_heads, by_keys = ranks * key_heads;
  return by_keys < by_heads && !forms_scores ? ContextAttention::kKeys : ContextAttention::kHeads;
}

at::Tensor attend_to_cut_rows(const QueriesKeysValues& given, const SelfAttention& attention,
                              const CutRows& cut, bool uniform,
                              const std::shared_ptr<KeptTensors>& kept, const at::Tensor& sinks) {
  return exchanges_heads(given.q, attention, cut)
             ? attend_by_heads(given, attention, cut, uniform, kept, sinks)
             : attend_by_keys(given, attention, cut, uniform, kept, sinks);
}

}  // namespace tessera
