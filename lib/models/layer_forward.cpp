// SPDX-License-Identifier: MIT
#include "lib/models/layer_forward.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/core/meta.h"
#include "lib/models/alibi_padding.h"
#include "lib/models/cut_attention.h"
#include "lib/models/packed_prefill.h"
#include "lib/models/query_key_norm.h"
#include "lib/models/sink_attention.h"
#include "lib/ops/sinks.h"
#include "tessera/core/key_value_cache.h"
#include "tessera/model/cut_rows.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

bool runs_fused(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                const DecoderBlockOptions& options, const MicroBatch& micro_batch,
                const BlockContext& context) {
  if (context.cut_rows != nullptr) {
    // The fused block drops by place in one tensor of whole rows.
    const bool drops = options.attention.dropout.on() || options.adapters.dropout > 0 ||
                       std::ranges::any_of(options.dropout, &ops::Dropout::on);
    if (context.cut_rows->attention_mask.defined() || drops) return false;
  }
  if (weights.sinks.defined() && options.attention.dropout.on()) return false;
  if (!options.attention.slopes.defined()) {
    return prefers_fused_block(hidden, micro_batch, context);
  }
  // No fused kernel supports ALiBi with dropout; both versions then materialise scores.
  return !micro_batch.attention_mask.defined() &&
         (context.fused_layers || (runs_on_gpu(hidden) && !options.attention.dropout.on()));
}

// Of the fused block; null: its kernels attend to whole rows.
DecoderAttention attention_of(const DecoderBlockWeights& weights,
                              const DecoderBlockOptions& options, const MicroBatch& micro_batch,
                              const BlockContext& context) {
  if (context.cut_rows != nullptr) {
    return [attention = options.attention, cut = context.cut_rows, kept = options.kept_tensors](
               const at::Tensor& qkv, const at::Tensor& sinks) {
      return attend_to_cut_rows(split_at_once(qkv, attention), attention, *cut, /*uniform=*/false,
                                kept, sinks);
    };
  }
  if (!weights.sinks.defined()) return {};
  return [attention = options.attention, packed = micro_batch.packed, kept = options.kept_tensors](
             const at::Tensor& qkv, const at::Tensor& sinks) {
    return detail::sink_attention(qkv, attention, sinks, packed, kept);
  };
}

at::Tensor causal_attention(const ops::QueriesKeysValues& given,
                            const ops::SelfAttention& attention, const MicroBatch& micro_batch,
                            const at::Tensor& sinks = {}) {
  const ops::AttentionDropout& dropout = attention.dropout;
  return ops::causal_attention(given.q, given.k, given.v, micro_batch.attention_mask,
                               {.scale = attention.scale,
                                .dropout = dropout.probability,
                                .seed = dropout.seed,
                                .first_head = dropout.first_head,
                                .window = attention.window,
                                .sinks = sinks},
                               micro_batch.packed);
}

// With head norms, rotary embedding and dropout, as decoder_block_composed() asks for. cut: null
// for whole rows.
at::Tensor attend(const at::Tensor& qkv, const DecoderBlockWeights& weights,
                  const DecoderBlockOptions& options, const MicroBatch& micro_batch,
                  const CutRows* cut) {
  const ops::SelfAttention& attention = options.attention;
  if (attention.slopes.defined() && cut == nullptr) {
    const at::Tensor& mask = micro_batch.attention_mask;
    return mask.defined() ? padded_alibi_attention(qkv, attention, mask)
                          : ops::alibi_attention(qkv, attention.slopes, {}, micro_batch.packed,
                                                 attention.dropout);
  }
  auto [q, k, v] = ops::split_heads(qkv, attention);
  if (weights.query_norm.defined()) {
    q = detail::query_or_key_norm(q, weights.query_norm, options.epsilon, options.axis);
    k = detail::query_or_key_norm(k, weights.key_norm, options.epsilon, options.axis);
  }
  if (options.rotary.cos.defined()) {
    q = ops::rotary(q, options.rotary, options.positions);
    k = ops::rotary(k, options.rotary, options.positions);
  }
  return cut != nullptr
             ? attend_to_cut_rows({q, k, v}, attention, *cut,
                                  /*uniform=*/attention.slopes.defined(), {}, weights.sinks)
             : causal_attention({q, k, v}, attention, micro_batch, weights.sinks);
}

// One tensor of all queries, keys and values, as ops::attention_forward() takes it.
at::Tensor joint(const ops::QueriesKeysValues& given) {
  return at::cat({given.q, given.k, given.v}, 2).flatten(2);
}

// joint: given as one tensor, or undefined.
at::Tensor attend_so_far(const void* block, const ops::QueriesKeysValues& given,
                         const at::Tensor& qkv, const ops::SelfAttention& attention,
                         const MicroBatch& micro_batch, const at::Tensor& sinks = {}) {
  const auto all = [&] { return qkv.defined() ? qkv : joint(given); };
  const DecodeState& rows = micro_batch.decode_state;
  if (rows.begun()) {
    const KeyValueCache::Part& part = rows.cache->part_of(block, given.k);
    const ops::CachedRows cached{part.keys, part.values, rows.lengths};
    return sinks.defined()
               ? ops::sink_attention_to_cache(given.q, given.k, given.v, cached, attention, sinks)
               : ops::attention_to_cache(given.q, given.k, given.v, cached, attention);
  }
  const PackedRows& packed = micro_batch.packed;
  if (packed.defined()) {
    const KeyValueCache::Part& part = rows.cache->part_of(block, given.k, /*end_to_end=*/true);
    ops::keep_in_cache(given.k, given.v, part.keys, part.values, packed);
    if (sinks.defined()) return detail::sink_attention(all(), attention, sinks, packed, nullptr);
    return attend_packed_prefill(all(), attention, packed, rows.cache->rows());
  }
  rows.cache->begin(block, given.k, given.v);
  if (attention.slopes.defined()) return ops::attention_forward(all(), attention, {}).output;
  if (sinks.defined() && !micro_batch.attention_mask.defined()) {
    return detail::sink_attention(all(), attention, sinks, {}, nullptr);
  }
  return causal_attention(given, attention, micro_batch, sinks);
}

}  // namespace

int64_t position_count(const MicroBatch& micro_batch, const BlockContext& context) {
  if (context.cut_rows != nullptr) return context.cut_rows->position_count;
  if (micro_batch.packed.defined()) return micro_batch.packed.position_count;
  const DecodeState& rows = micro_batch.decode_state;
  return rows.begun() ? rows.cache->capacity() : micro_batch.input_ids.size(1);
}

at::Tensor positions_of(const MicroBatch& micro_batch, const BlockContext& context) {
  if (context.cut_rows != nullptr) return context.cut_rows->positions;
  if (micro_batch.packed.defined()) return micro_batch.packed.positions;
  const DecodeState& rows = micro_batch.decode_state;
  return rows.begun() ? rows.lengths.unsqueeze(1) : at::Tensor();
}

at::Tensor attend_with_cache(const void* block, const ops::QueriesKeysValues& given,
                             const ops::SelfAttention& attention, const MicroBatch& micro_batch) {
  return attend_so_far(block, given, {}, attention, micro_batch);
}

at::Tensor layer_forward(const void* block, const at::Tensor& hidden,
                         const DecoderBlockWeights& weights, const DecoderBlockOptions& options,
                         const MicroBatch& micro_batch, const BlockContext& context) {
  const at::IntArrayRef tokens = micro_batch.input_ids.sizes();
  if (micro_batch.decode_state.defined()) {
    const auto so_far = [&](const at::Tensor& qkv, const at::Tensor& sinks) {
      return attend_so_far(block, ops::split_heads(qkv, options.attention), qkv, options.attention,
                           micro_batch, sinks);
    };
    return decoder_block_inference(hidden, weights, options, tokens, so_far);
  }
  if (runs_fused(hidden, weights, options, micro_batch, context)) {
    // Kernels of whole rows get their packing, a given attention has it.
    const PackedRows packed = weights.sinks.defined() ? PackedRows{} : micro_batch.packed;
    return decoder_block_fused(hidden, weights, options, tokens, {}, packed,
                               attention_of(weights, options, micro_batch, context));
  }
  const auto composed = [&](const at::Tensor& qkv, const at::Tensor&) {
    return attend(qkv, weights, options, micro_batch, context.cut_rows.get());
  };
  return decoder_block_composed(hidden, weights, options, tokens, composed);
}

}  // namespace tessera
