// SPDX-License-Identifier: MIT
#include "tessera/ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "lib/models/cut_attention.h"
#include "lib/models/layer_forward.h"
#include "lib/program/rewrites/attention_source.h"
#include "lib/program/rewrites/cut_context.h"
#include "lib/program/rewrites/head_source.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/rewrites/rotary_tables.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

constexpr int64_t kMostScores = int64_t{1}
                                << 25;  // of windows that are proven by running past them
constexpr double kLargeOfProducts = 4;  // ProofOptions::large
constexpr size_t kQuery = 0, kKey = 1, kValue = 2, kCos = 3, kSin = 4, kScale = 5, kWindow = 6,
                 kPaired = 7, kPadded = 8, kByToken = 9, kHalved = 11, kNumber = 12, kSoftcap = 13,
                 kSinks = 14, kSlopes = 15,
                 kRank = 16;  // places of run_attention()'s arguments

// Rotates the first 2 * tables.cos.size(1) numbers of each head of x [batch, sequence, heads, d].
// paired: neighbours are a pair. They are moved to the halves, of queries and keys alike, which
// leaves their products as they are.
at::Tensor rotated(const at::Tensor& x, const ops::RotaryTables& tables, bool paired,
                   const at::Tensor& positions) {
  const int64_t r = 2 * tables.cos.size(1), d = x.size(3);
  at::Tensor part = r < d ? x.narrow(3, 0, r) : x;
  if (paired) part = part.unflatten(3, {r / 2, 2}).transpose(3, 4).flatten(3);
  part = ops::rotary(part, tables, positions);
  return r < d ? at::cat({part, x.narrow(3, r, d - r)}, 3) : part;
}

// The slopes of the rank's heads on its device: formed once a block.
at::Tensor slopes_of(const std::vector<c10::IValue>& arguments, const at::Tensor& q,
                     const RunContext& context) {
  if (arguments[kSlopes].isNone()) return {};
  at::Tensor own;
  at::Tensor& kept = context.kept == nullptr ? own : (*context.kept)[arguments[kNumber].toInt()];
  if (!kept.defined() || kept.device() != q.device()) {
    const std::vector<double> all = arguments[kSlopes].toDoubleVector();
    const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    kept = at::tensor(all, type)
               .narrow(0, arguments[kRank].toInt() * q.size(2), q.size(2))
               .to(q.device());
  }
  return kept;
}

// By the kernels of ALiBi, whose scores are q . k / sqrt(d).
at::Tensor attend_with_slopes(const ops::QueriesKeysValues& given, const ops::SelfAttention& how,
                              const at::Tensor& mask, const PackedRows& packed) {
  const int64_t groups = how.heads / how.key_heads;
  const auto by_head = [&](const at::Tensor& x) {
    return groups == 1 ? x : x.repeat_interleave(groups, 2);
  };
  const double factor = how.scale * std::sqrt(static_cast<double>(given.q.size(3)));
  const bool plain = std::abs(factor - 1) < 1e-12;
  const at::Tensor qkv =
      at::stack({plain ? given.q : given.q * factor, by_head(given.k), by_head(given.v)}, 3);
  return ops::alibi_attention(qkv.flatten(2), how.slopes, mask, packed);
}

// query, key, value; cosines and sines or None; scale, window; whether pairs are neighbours,
// whether the user's attention mask counts; bits of the operands that are given by token; whether
// the tables have a row for each place, and are halved already; the attention's number; soft cap or
// 0, sinks or None, slopes of all heads or None; the rank on a tensor axis.
at::Tensor run_attention(const std::vector<c10::IValue>& arguments, const RunContext& context) {
  const int64_t tokens_first = arguments[kByToken].toInt();
  const auto operand = [&](size_t place) {
    const at::Tensor& x = arguments[place].toTensor();
    return (tokens_first >> place) & 1 ? x : x.transpose(1, 2);
  };
  static const PackedRows none;
  static const BlockContext evaluation;
  const MicroBatch* batch = context.micro_batch;
  const BlockContext& block = context.block == nullptr ? evaluation : *context.block;
  const PackedRows& packed = batch == nullptr ? none : batch->packed;
  at::Tensor q = operand(kQuery), k = operand(kKey);
  if (!arguments[kCos].isNone()) {
    const bool paired = arguments[kPaired].toBool();
    const ops::RotaryTables tables =
        rotary_tables_of(arguments[kCos].toTensor(), arguments[kSin].toTensor(),
                         arguments[kHalved].toBool(), paired);
    const at::Tensor positions = batch == nullptr ? at::Tensor() : positions_of(*batch, block);
    q = rotated(q, tables, paired, positions);
    k = rotated(k, tables, paired, positions);
  }
  const ops::SelfAttention attention{.heads = q.size(2),
                                     .key_heads = k.size(2),
                                     .scale = arguments[kScale].toDouble(),
                                     .slopes = slopes_of(arguments, q, context),
                                     .window = arguments[kWindow].toInt()};
  const ops::QueriesKeysValues given{q, k, operand(kValue)};
  if (batch != nullptr && batch->decode_state.defined()) {
    return attend_with_cache(context.cache_keys + arguments[kNumber].toInt(), given, attention,
                             *batch);
  }
  if (const auto cut = cut_rows_for(block, arguments[kPadded].toBool()); cut != nullptr) {
    return attend_to_cut_rows(given, attention, *cut);
  }
  at::Tensor mask;
  if (arguments[kPadded].toBool() && batch != nullptr) mask = batch->attention_mask;
  const ops::CausalAttentionOptions options{
      .scale = attention.scale,
      .window = attention.window,
      .softcap = arguments[kSoftcap].toDouble(),
      .sinks = arguments[kSinks].isNone() ? at::Tensor() : arguments[kSinks].toTensor(),
      .slopes = attention.slopes};
  const bool alibi = options.slopes.defined() && options.window == 0 && options.softcap == 0 &&
                     !options.sinks.defined();
  return alibi ? attend_with_slopes(given, attention, mask, packed)
               : ops::causal_attention(q, k, given.v, mask, options, packed);
}

struct Operands {
  HeadSource query, key, value;
};

// The slope of every head, or None.
Argument slopes_argument(const MaskForm& form, int64_t heads) {
  if (form.slopes.empty()) return Item();
  std::vector<Item> slopes;
  for (int64_t i = 0; i < heads; ++i) {
    slopes.emplace_back(form.slopes[form.slopes.size() == 1 ? 0 : static_cast<size_t>(i)]);
  }
  return slopes;
}

void add_candidates(const AttentionSource& source, const Operands& from, const MaskForm& form,
                    int64_t heads, ValueId output, bool by_place, Proposal& proposal) {
  const bool rotates = !from.query.tables.empty();
  const int64_t by_token =
      (from.query.by_token ? 1 : 0) | (from.key.by_token ? 2 : 0) | (from.value.by_token ? 4 : 0);
  for (const bool paired : {false, true}) {
    for (const bool swapped : {false, true}) {
      if (!rotates && (paired || swapped)) continue;
      const ValueId cos = rotates ? from.query.tables[swapped ? 1 : 0] : kNoValue;
      const ValueId sin = rotates ? from.query.tables[swapped ? 0 : 1] : kNoValue;
      Candidate candidate{output,
                          {{"query", reference(from.query.heads)},
                           {"key", reference(from.key.heads)},
                           {"value", reference(from.value.heads)},
                           {"cos", item_or_none(cos)},
                           {"sin", item_or_none(sin)},
                           {"scale", Item(source.scale)},
                           {"window", Item(form.window)},
                           {"paired", Item(paired)},
                           {"padded", Item(form.padded)},
                           {"by_token", Item(by_token)},
                           {"by_place", Item(by_place)},
                           {"halved", Item(false)},
                           {"number", Item(int64_t{0})},
                           {"softcap", Item(source.softcap)},
                           {"sinks", item_or_none(source.sinks)},
                           {"slopes", slopes_argument(form, heads)},
                           {"rank", Item(int64_t{0})}}};
      candidate.proof.padded = form.padded;
      // Probabilities of products are 0 or 1 but for rounding where scores are larger.
      if (!source.bias.without.empty()) candidate.proof.large = kLargeOfProducts;
      candidate.proof.documents = !rotates || by_place;
      if (form.window > 0 && heads * (form.window + 4) * (form.window + 4) <= kMostScores) {
        candidate.proof.sequence = form.window + 4;
      }
      proposal.candidates.push_back(std::move(candidate));
    }
  }
}

std::optional<Proposal> propose_attention(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  const std::optional<AttentionSource> source = attention_before(view, node);
  if (!source) return std::nullopt;
  Proposal proposal{.reason = source->reason};
  if (!source->reason.empty()) return proposal;
  const MaskForm form = source->bias.output == kNoValue ? MaskForm{} : view.mask_form(source->bias);
  proposal.reason = form.reason;
  const int64_t heads = extent_of(view.value(source->query), 1);
  const bool fits = form.slopes.size() <= 1 || static_cast<int64_t>(form.slopes.size()) == heads;
  if (!fits) proposal.reason = "its bias has other heads than its queries";
  if (extent_of(view.value(source->value), 3) != extent_of(view.value(source->key), 3)) {
    proposal.reason = "its values have another width than its keys";
  }
  if (!proposal.reason.empty()) return proposal;
  const HeadSource value = head_sources(view, source->value, true).back();
  for (const HeadSource& q : head_sources(view, source->query, false)) {
    for (const HeadSource& k : head_sources(view, source->key, true)) {
      if (q.tables.empty() != k.tables.empty()) continue;
      const bool by_place = std::all_of(q.tables.begin(), q.tables.end(),
                                        [&](ValueId table) { return view.is_by_place(table); });
      add_candidates(*source, {q, k, value}, form, heads, result_of(node), by_place, proposal);
    }
  }
  return proposal;
}

}  // namespace

Rewrite attention_rewrite() {
  return {"attention", {"tessera.attention", run_attention}, propose_attention};
}

}  // namespace tessera::program
