#include "tessera/models/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "lib/models/assemble.h"
#include "lib/models/decoder_block.h"
#include "lib/models/so_far.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

class LlamaEmbedding final : public DecoderPart {
 public:
  LlamaEmbedding(const LlamaConfig& config, const BuildContext&, BlockWeights weights)
      : DecoderPart(weights), vocabulary_(config.vocabulary), pad_token_(config.pad_token) {
    table_ = weights.normal("embed_tokens.weight", {config.vocabulary, config.hidden},
                            config.initializer_range, kVocabularyRows);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor&, const MicroBatch& micro_batch) override {
    const at::Tensor& ids = micro_batch.input_ids;
    const at::Tensor hidden = vocab_parallel_embedding(ids, table_, vocabulary_, axis_);
    if (!pad_token_) return hidden;
    at::Tensor real = ids.ne(*pad_token_).unsqueeze(2);
    if (axis_.sequence_parallel()) real = own_tokens(real.to(hidden.scalar_type()), axis_).ne(0);
    return at::where(real, hidden, hidden.detach());
  }

 private:
  int64_t vocabulary_;
  std::optional<int64_t> pad_token_;  // looked up like any other, but never trained by it
  at::Tensor table_;
};

class LlamaBlock final : public DecoderPart {
 public:
  LlamaBlock(const LlamaConfig& config, const BuildContext& context, BlockWeights weights,
             size_t index)
      : DecoderPart(weights),
        attention_dropout_(config.attention_dropout),
        seed_(block_seed(context.seed, index)) {
    frequencies_ = ops::rotary_frequencies(config.head_dim, config.rope_theta,
                                           config.rope_linear_factor, config.rope_llama3)
                       .to(context.device);
    const int64_t h = config.hidden, width = config.heads * config.head_dim;
    const int64_t key_width = config.key_heads * config.head_dim;
    constexpr int kRows = 0, kColumns = 1;  // of the weight, which the ranks share
    auto norm = [&](const std::string& name) {
      return NormWeights{weights.constant(name + ".weight", {h}, 1.0), {}};
    };
    auto linear = [&](ProductWeights& to, const std::string& name, int64_t in, int64_t out, int dim,
                      bool with_bias) {
      to.weights.push_back(
          weights.normal(name + ".weight", {out, in}, config.initializer_range, {.dim = dim}));
      const TensorCut with_rows{.dim = dim == kRows ? 0 : -1};
      if (with_bias) to.biases.push_back(weights.constant(name + ".bias", {out}, 0.0, with_rows));
    };
    w_.input_norm = norm("input_layernorm");
    linear(w_.qkv, "self_attn.q_proj", h, width, kRows, config.attention_bias);
    linear(w_.qkv, "self_attn.k_proj", h, key_width, kRows, config.attention_bias);
    linear(w_.qkv, "self_attn.v_proj", h, key_width, kRows, config.attention_bias);
    linear(w_.dense, "self_attn.o_proj", width, h, kColumns, config.attention_bias);
    w_.attention_norm = norm("post_attention_layernorm");
    linear(w_.up, "mlp.gate_proj", h, config.inner, kRows, config.mlp_bias);
    linear(w_.up, "mlp.up_proj", h, config.inner, kRows, config.mlp_bias);
    linear(w_.down, "mlp.down_proj", config.inner, h, kColumns, config.mlp_bias);
    options_.axis = axis_;
    parameters_ = weights.take();
    options_.epsilon = config.rms_norm_epsilon;
    options_.gated = true;
    options_.attention = {.heads = config.heads / options_.axis.size(),
                          .key_heads = config.key_heads / options_.axis.size(),
                          .scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim))};
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::IntArrayRef tokens = micro_batch.input_ids.sizes();
    DecoderBlockOptions options = options_;
    options.positions = positions_of(micro_batch);
    options.rotary = tables_for(position_count(micro_batch));
    if (micro_batch.so_far.defined()) {
      return decoder_block_inference(hidden, w_, options, tokens, [&](const at::Tensor& qkv) {
        return attend(ops::split_heads(qkv, options.attention), micro_batch);
      });
    }
    if (prefers_fused_block(hidden, micro_batch)) {
      options.attention.dropout = dropout_of(micro_batch);
      options.keep_activations = micro_batch.keep_activations;
      options.gradient_columns = micro_batch.gradient_columns;
      return decoder_block_fused(hidden, w_, options, tokens, {}, micro_batch.packed);
    }
    return decoder_block_composed(hidden, w_, options, tokens, [&](const at::Tensor& qkv) {
      const auto [q, k, v] = ops::split_heads(qkv, options.attention);
      return attend({ops::rotary(q, options.rotary, options.positions),
                     ops::rotary(k, options.rotary, options.positions), v},
                    micro_batch);
    });
  }

 private:
  at::Tensor attend(const ops::QueriesKeysValues& given, const MicroBatch& micro_batch) const {
    const ops::SelfAttention& attention = options_.attention;
    const auto [dropout, seed, first_head] = dropout_of(micro_batch);
    const ops::CausalAttentionOptions options{attention.scale, dropout, seed, first_head};
    return attend_so_far(micro_batch, this, given, attention, [&] {
      return ops::causal_attention(given.q, given.k, given.v, micro_batch.attention_mask, options,
                                   micro_batch.packed);
    });
  }

  ops::AttentionDropout dropout_of(const MicroBatch& micro_batch) const {
    if (!micro_batch.training) return {};
    return {attention_dropout_, block_seed(micro_batch.seed, seed_),
            options_.axis.rank() * options_.attention.heads};
  }

  // Undefined: the tokens' columns.
  static at::Tensor positions_of(const MicroBatch& micro_batch) {
    if (micro_batch.packed.defined()) return micro_batch.packed.positions;
    const RowsSoFar& rows = micro_batch.so_far;
    return rows.begun() ? rows.lengths.unsqueeze(1) : at::Tensor();
  }
  static int64_t position_count(const MicroBatch& micro_batch) {
    if (micro_batch.packed.defined()) return micro_batch.packed.position_count;
    const RowsSoFar& rows = micro_batch.so_far;
    return rows.begun() ? rows.cache->capacity() : micro_batch.input_ids.size(1);
  }

  // For this many positions at least.
  const ops::RotaryTables& tables_for(int64_t positions) {
    if (!tables_.cos.defined() || tables_.cos.size(0) < positions) {
      const at::NoGradGuard no_grad;
      tables_ = ops::rotary_tables(frequencies_,
                                   static_cast<int64_t>(std::bit_ceil(uint64_t(positions))));
    }
    return tables_;
  }

  double attention_dropout_;
  uint64_t seed_;
  at::Tensor frequencies_;
  ops::RotaryTables tables_;
  DecoderBlockWeights w_;
  DecoderBlockOptions options_;
};

DecoderParts parts_of(const LlamaConfig& config) {
  config.validate();
  return {.config = config,
          .layer_prefix = "layers.",
          .table = "embed_tokens.weight",
          .checkpoint_prefix = "model.",
          .embedding = embedding_of<LlamaEmbedding>(config),
          .layer = layers_of<LlamaBlock>(config),
          .final_norm = "norm",
          .rms_norm = true,
          .epsilon = config.rms_norm_epsilon,
          .attention_width = config.heads * config.head_dim,
          .tensor_divisor = std::gcd(config.key_heads, config.inner)};
}

}  // namespace

ModelSpec make_llama_causal(const LlamaConfig& config) { return assemble_causal(parts_of(config)); }

ModelSpec make_llama_classifier(const LlamaConfig& config, int64_t num_labels) {
  return assemble_classifier(parts_of(config), num_labels);
}

}  // namespace tessera
