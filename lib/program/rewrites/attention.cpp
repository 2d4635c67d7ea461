// SPDX-License-Identifier: MIT
#include "tessera/ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "lib/models/layer_forward.h"
#include "lib/program/rewrites/head_source.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/rewrites/rotary_tables.h"
#include "tessera/core/micro_batch.h"

namespace tessera::program {
namespace {

constexpr const char* kAttention = "aten.scaled_dot_product_attention.default";
constexpr int64_t kMostScores = int64_t{1}
                                << 25;  // of windows that are proven by running past them
constexpr size_t kQuery = 0, kKey = 1, kValue = 2, kCos = 3, kSin = 4, kScale = 5, kWindow = 6,
                 kPaired = 7, kPadded = 8, kByToken = 9, kHalved = 11,
                 kNumber = 12;  // places of run_attention()'s arguments

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

// query, key, value; cosines and sines or None; scale, window; whether pairs are neighbours,
// whether the user's attention mask counts; bits of the operands that are given by token; whether
// the tables have a row for each place, and are halved already; the attention's number.
at::Tensor run_attention(const std::vector<c10::IValue>& arguments, const RunContext& context) {
  const int64_t tokens_first = arguments[kByToken].toInt();
  const auto operand = [&](size_t place) {
    const at::Tensor& x = arguments[place].toTensor();
    return (tokens_first >> place) & 1 ? x : x.transpose(1, 2);
  };
  static const PackedRows none;
  const MicroBatch* batch = context.micro_batch;
  const PackedRows& packed = batch == nullptr ? none : batch->packed;
  at::Tensor q = operand(kQuery), k = operand(kKey);
  if (!arguments[kCos].isNone()) {
    const bool paired = arguments[kPaired].toBool();
    const ops::RotaryTables tables =
        rotary_tables_of(arguments[kCos].toTensor(), arguments[kSin].toTensor(),
                         arguments[kHalved].toBool(), paired);
    const at::Tensor positions = batch == nullptr ? at::Tensor() : positions_of(*batch);
    q = rotated(q, tables, paired, positions);
    k = rotated(k, tables, paired, positions);
  }
  const double scale = arguments[kScale].toDouble();
  const int64_t window = arguments[kWindow].toInt();
  if (batch != nullptr && batch->decode_state.defined()) {
    const ops::SelfAttention attention{
        .heads = q.size(2), .key_heads = k.size(2), .scale = scale, .slopes = {}, .window = window};
    return attend_with_cache(context.cache_keys + arguments[kNumber].toInt(),
                             {q, k, operand(kValue)}, attention, *batch);
  }
  at::Tensor mask;
  if (arguments[kPadded].toBool() && batch != nullptr) mask = batch->attention_mask;
  const ops::CausalAttentionOptions options{.scale = scale, .window = window};
  return ops::causal_attention(q, k, operand(kValue), mask, options, packed);
}

// The attention whose output these heads are, joined; null: the node joins none.
const Node* attention_before(const ProgramView& view, const Node& node) {
  const bool joins = node.target == "aten.reshape.default" || node.target == "aten.view.default" ||
                     node.target == "aten.flatten.using_ints" ||
                     node.target == "aten._unsafe_view.default";
  const ValueId result = result_of(node);
  if (!joins || result == kNoValue || view.value(result).sizes.size() != 3) return nullptr;
  const Node* before = &node;
  for (int i = 0; i < 6; ++i) {
    const ValueId self = value_of(*before, "self");
    before = self == kNoValue ? nullptr : view.maker(self);
    if (before == nullptr) return nullptr;
    if (before->target == kAttention) return before;
    const std::string& target = before->target;
    if (target != "aten.transpose.int" && target != "aten.reshape.default" &&
        target != "aten.contiguous.default" && target != "aten.clone.default" &&
        target != "aten.view.default" && target != "aten.permute.default") {
      return nullptr;
    }
  }
  return nullptr;
}

// Why the node is no attention of tessera's; its mask's form otherwise.
MaskForm form_of(const ProgramView& view, const Node& node) {
  if (number_of(node, "dropout_p").value_or(0) > 0) return {.reason = "it drops probabilities"};
  const ValueId mask = value_of(node, "attn_mask");
  if (mask == kNoValue) {
    if (flag_of(node, "is_causal")) return {};
    return {.reason = "it attends in both directions"};
  }
  if (!view.is_free(mask)) return {.reason = "parameters enter its mask"};
  return view.mask_form(mask);
}

struct Operands {
  HeadSource query, key, value;
  double scale = 1;
};

void add_candidates(const Operands& from, const MaskForm& form, int64_t heads, ValueId output,
                    bool by_place, Proposal& proposal) {
  const bool rotates = !from.query.tables.empty();
  const int64_t by_token =
      (from.query.by_token ? 1 : 0) | (from.key.by_token ? 2 : 0) | (from.value.by_token ? 4 : 0);
  for (const bool paired : {false, true}) {
    for (const bool swapped : {false, true}) {
      if (!rotates && (paired || swapped)) continue;
      const ValueId cos = rotates ? from.query.tables[swapped ? 1 : 0] : kNoValue;
      const ValueId sin = rotates ? from.query.tables[swapped ? 0 : 1] : kNoValue;
      Candidate candidate{output,
                          {{"query", Item(ValueRef{from.query.heads})},
                           {"key", Item(ValueRef{from.key.heads})},
                           {"value", Item(ValueRef{from.value.heads})},
                           {"cos", item_or_none(cos)},
                           {"sin", item_or_none(sin)},
                           {"scale", Item(from.scale)},
                           {"window", Item(form.window)},
                           {"paired", Item(paired)},
                           {"padded", Item(form.padded)},
                           {"by_token", Item(by_token)},
                           {"by_place", Item(by_place)},
                           {"halved", Item(false)},
                           {"number", Item(int64_t{0})}}};
      candidate.proof.padded = form.padded;
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
  const Node* attention = attention_before(view, node);
  if (attention == nullptr) return std::nullopt;
  Proposal proposal;
  const MaskForm form = form_of(view, *attention);
  proposal.reason = form.reason;
  if (!form.reason.empty()) return proposal;
  const ValueId query = value_of(*attention, "query");
  const int64_t heads = extent_of(view.value(query), 1), d = extent_of(view.value(query), 3);
  const double scale =
      number_of(*attention, "scale").value_or(1.0 / std::sqrt(static_cast<double>(d)));
  const HeadSource value = head_sources(view, value_of(*attention, "value"), true).back();
  for (const HeadSource& q : head_sources(view, query, false)) {
    for (const HeadSource& k : head_sources(view, value_of(*attention, "key"), true)) {
      if (q.tables.empty() != k.tables.empty()) continue;
      const bool by_place = std::all_of(q.tables.begin(), q.tables.end(),
                                        [&](ValueId table) { return view.is_by_place(table); });
      add_candidates({q, k, value, scale}, form, heads, result_of(node), by_place, proposal);
    }
  }
  return proposal;
}

}  // namespace

Rewrite attention_rewrite() {
  return {"attention", {"tessera.attention", run_attention}, propose_attention};
}

}  // namespace tessera::program
