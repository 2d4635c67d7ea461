#include "tessera/models/gpt2.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "lib/model/tensor_collectives.h"
#include "lib/models/assemble.h"
#include "lib/models/block_dropout.h"
#include "lib/models/decoder_block.h"
#include "lib/models/so_far.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

class Gpt2Embedding final : public DecoderPart {
 public:
  Gpt2Embedding(const Gpt2Config& config, const BuildContext& context, BlockWeights weights)
      : DecoderPart(weights),
        vocabulary_(config.vocabulary),
        probability_(config.embedding_dropout),
        dropout_(context, 0) {
    const double deviation = config.initializer_range;
    tokens_ = weights.normal("wte.weight", {config.vocabulary, config.hidden}, deviation,
                             kVocabularyRows);
    positions_ = weights.normal("wpe.weight", {config.max_positions, config.hidden}, deviation);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor&, const MicroBatch& micro_batch) override {
    const PackedRows& packed = micro_batch.packed;
    const int64_t length = micro_batch.so_far.defined() ? micro_batch.so_far.cache->capacity()
                           : packed.defined()           ? packed.position_count
                                                        : micro_batch.input_ids.size(1);
    check(length <= positions_.size(0), ErrorCode::kInvalidArgument, "a sequence of ", length,
          " tokens, but the model has ", positions_.size(0), " positions");
    const at::Tensor hidden =
        vocab_parallel_embedding(micro_batch.input_ids, tokens_, vocabulary_, axis_) +
        positions_of(micro_batch);
    const auto [probability, seed, first] =
        dropout_.of(probability_, micro_batch, kEmbeddingDropout, hidden.size(-1));
    return ops::dropout(hidden, probability, seed, first);
  }

 private:
  at::Tensor positions_of(const MicroBatch& micro_batch) const {
    const at::Tensor& ids = micro_batch.input_ids;
    at::Tensor places = micro_batch.packed.positions;
    const bool begun = micro_batch.so_far.begun();
    if (begun) places = micro_batch.so_far.lengths.unsqueeze(1);
    if (!places.defined()) places = at::arange(ids.size(1), ids.options()).expand_as(ids);
    if (axis_.sequence_parallel()) {
      places = detail::own_rows(places.reshape({-1, 1}), axis_).squeeze(1);
    } else if (!micro_batch.packed.defined() && !begun) {
      return positions_.narrow(0, 0, ids.size(1));
    }
    return ops::embedding(places, positions_);
  }

  int64_t vocabulary_;
  double probability_;
  BlockDropout dropout_;
  at::Tensor tokens_, positions_;
};

class Gpt2Block final : public DecoderPart {
 public:
  Gpt2Block(const Gpt2Config& config, const BuildContext& context, BlockWeights weights,
            size_t index)
      : DecoderPart(weights),
        attention_dropout_(config.attention_dropout),
        residual_dropout_(config.residual_dropout),
        dropout_(context, index) {
    const int64_t h = config.hidden;
    const double deviation = config.initializer_range;
    const double narrow = deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
    auto norm = [&](const std::string& name) {
      const at::Tensor weight = weights.constant(name + ".weight", {h}, 1.0);
      return NormWeights{weight, weights.constant(name + ".bias", {h}, 0.0)};
    };
    auto linear = [&](const std::string& name, int64_t in, int64_t out, double spread,
                      const TensorCut& cut) {
      const at::Tensor weight = weights.normal(name + ".weight", {in, out}, spread, cut);
      const TensorCut with_columns{.dim = cut.dim == 1 ? 0 : -1, .parts = cut.parts};
      const at::Tensor bias = weights.constant(name + ".bias", {out}, 0.0, with_columns);
      return ProductWeights{{weight}, {bias}, /*in_out=*/true};
    };
    constexpr TensorCut kRows{.dim = 0}, kColumns{.dim = 1}, kQkv{.dim = 1, .parts = 3};
    w_.input_norm = norm("ln_1");
    w_.qkv = linear("attn.c_attn", h, 3 * h, deviation, kQkv);
    w_.dense = linear("attn.c_proj", h, h, narrow, kRows);
    w_.attention_norm = norm("ln_2");
    w_.up = linear("mlp.c_fc", h, config.inner, deviation, kColumns);
    w_.down = linear("mlp.c_proj", config.inner, h, narrow, kRows);
    options_.axis = axis_;
    parameters_ = weights.take();
    options_.epsilon = config.layer_norm_epsilon;
    ops::SelfAttention& attention = options_.attention;
    attention.heads = attention.key_heads = config.heads / options_.axis.size();
    if (config.scale_attention) {
      attention.scale = 1.0 / std::sqrt(static_cast<double>(h / config.heads));
    }
    if (config.scale_attention_by_layer) attention.scale /= static_cast<double>(index);
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::IntArrayRef tokens = micro_batch.input_ids.sizes();
    const auto attention = [&](const at::Tensor& qkv) { return attend(qkv, micro_batch); };
    if (micro_batch.so_far.defined()) {
      return decoder_block_inference(hidden, w_, options_, tokens, attention);
    }
    const DecoderBlockOptions options = in_step(micro_batch, hidden.size(-1));
    if (prefers_fused_block(hidden, micro_batch)) {
      return decoder_block_fused(hidden, w_, options, tokens, {}, micro_batch.packed);
    }
    return decoder_block_composed(hidden, w_, options, tokens, attention);
  }

 private:
  DecoderBlockOptions in_step(const MicroBatch& micro_batch, int64_t width) const {
    DecoderBlockOptions options = options_;
    options.dropout = {dropout_.of(residual_dropout_, micro_batch, kContextDropout, width),
                       dropout_.of(residual_dropout_, micro_batch, kInnerDropout, width)};
    options.attention.dropout = attention_dropout(micro_batch);
    options.keep_activations = micro_batch.keep_activations;
    options.gradient_columns = micro_batch.gradient_columns;
    return options;
  }
  ops::AttentionDropout attention_dropout(const MicroBatch& micro_batch) const {
    return dropout_.of_attention(attention_dropout_, micro_batch, options_.attention.heads);
  }
  at::Tensor attend(const at::Tensor& qkv, const MicroBatch& micro_batch) const {
    const ops::SelfAttention& attention = options_.attention;
    const ops::QueriesKeysValues given = ops::split_heads(qkv, attention);
    const auto [dropout, seed, first_head] = attention_dropout(micro_batch);
    const ops::CausalAttentionOptions options{attention.scale, dropout, seed, first_head};
    return attend_so_far(micro_batch, this, given, attention, [&] {
      return ops::causal_attention(given.q, given.k, given.v, micro_batch.attention_mask, options,
                                   micro_batch.packed);
    });
  }

  double attention_dropout_, residual_dropout_;
  BlockDropout dropout_;
  DecoderBlockWeights w_;
  DecoderBlockOptions options_;
};

DecoderParts parts_of(const Gpt2Config& config) {
  config.validate();
  return {.config = config,
          .layer_prefix = "h.",
          .table = "wte.weight",
          .checkpoint_prefix = "transformer.",
          .embedding = embedding_of<Gpt2Embedding>(config),
          .layer = layers_of<Gpt2Block>(config),
          .final_norm = "ln_f",
          .epsilon = config.layer_norm_epsilon,
          .attention_width = config.hidden,
          .tensor_divisor = std::gcd(config.heads, config.inner)};
}

}  // namespace

ModelSpec make_gpt2_causal(const Gpt2Config& config) { return assemble_causal(parts_of(config)); }

ModelSpec make_gpt2_classifier(const Gpt2Config& config, int64_t num_labels) {
  return assemble_classifier(parts_of(config), num_labels);
}

}  // namespace tessera
