#include "tessera/models/bloom.h"

#include <ATen/ATen.h>

#include <utility>

#include "lib/core/meta.h"
#include "lib/models/assemble.h"
#include "lib/models/block_dropout.h"
#include "lib/models/bloom_block.h"
#include "lib/models/decoder_block.h"
#include "lib/models/so_far.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

class BloomEmbedding final : public DecoderPart {
 public:
  BloomEmbedding(const BloomConfig& config, const BuildContext&, BlockWeights weights)
      : DecoderPart(weights), vocabulary_(config.vocabulary), epsilon_(config.layer_norm_epsilon) {
    const int64_t h = config.hidden;
    table_ = weights.normal("word_embeddings.weight", {config.vocabulary, h},
                            config.initializer_range, kVocabularyRows);
    norm_weight_ = weights.constant("word_embeddings_layernorm.weight", {h}, 1.0);
    norm_bias_ = weights.constant("word_embeddings_layernorm.bias", {h}, 0.0);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor&, const MicroBatch& micro_batch) override {
    return ops::layer_norm(
        vocab_parallel_embedding(micro_batch.input_ids, table_, vocabulary_, axis_), norm_weight_,
        norm_bias_, epsilon_);
  }

 private:
  int64_t vocabulary_;
  double epsilon_;
  at::Tensor table_, norm_weight_, norm_bias_;
};

class BloomBlock final : public DecoderPart {
 public:
  BloomBlock(const BloomConfig& config, const BuildContext& context, BlockWeights weights,
             size_t index)
      : DecoderPart(weights),
        epsilon_(config.layer_norm_epsilon),
        residual_post_layernorm_(config.residual_post_layernorm),
        hidden_dropout_(config.hidden_dropout),
        attention_dropout_(config.attention_dropout),
        dropout_(context, index) {
    const int64_t heads = config.heads / axis_.size();
    slopes_ =
        ops::alibi_slopes(config.heads).narrow(0, axis_.rank() * heads, heads).to(context.device);
    const int64_t h = config.hidden;
    const double deviation = config.initializer_range;
    auto norm = [&](const std::string& name, at::Tensor& weight, at::Tensor& bias) {
      weight = weights.constant(name + ".weight", {h}, 1.0);
      bias = weights.constant(name + ".bias", {h}, 0.0);
    };
    constexpr int kRows = 0, kColumns = 1;
    auto linear = [&](const std::string& name, int64_t out, int64_t in, int dim, at::Tensor& weight,
                      at::Tensor& bias) {
      weight = weights.normal(name + ".weight", {out, in}, deviation, {.dim = dim});
      const TensorCut with_rows{.dim = dim == kRows ? 0 : -1};
      bias = weights.constant(name + ".bias", {out}, 0.0, with_rows);
    };
    norm("input_layernorm", w_.input_norm_weight, w_.input_norm_bias);
    linear("self_attention.query_key_value", 3 * h, h, kRows, w_.qkv_weight, w_.qkv_bias);
    linear("self_attention.dense", h, h, kColumns, w_.dense_weight, w_.dense_bias);
    norm("post_attention_layernorm", w_.attention_norm_weight, w_.attention_norm_bias);
    linear("mlp.dense_h_to_4h", 4 * h, h, kRows, w_.up_weight, w_.up_bias);
    linear("mlp.dense_4h_to_h", h, 4 * h, kColumns, w_.down_weight, w_.down_bias);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::Tensor& mask = micro_batch.attention_mask;
    if (micro_batch.so_far.defined()) {
      return bloom_block_inference(hidden, w_, slopes_, epsilon_, residual_post_layernorm_,
                                   micro_batch.input_ids.sizes(), axis_,
                                   [&](const at::Tensor& qkv) { return attend(qkv, micro_batch); });
    }
    const BloomBlockTraining training = training_of(micro_batch, hidden.size(-1));
    // No kernel drops probabilities of ALiBi: there both versions form scores.
    const bool fused =
        micro_batch.fused_layers || (runs_on_gpu(hidden) && !training.attention.on());
    const auto version = mask.defined() ? &bloom_block_padded
                         : fused        ? &bloom_block_fused
                                        : &bloom_block_composed;
    return version(hidden, w_, slopes_, mask, epsilon_, residual_post_layernorm_,
                   micro_batch.input_ids.sizes(), axis_, micro_batch.packed, training);
  }

 private:
  BloomBlockTraining training_of(const MicroBatch& micro_batch, int64_t width) const {
    return {dropout_.of_attention(attention_dropout_, micro_batch, slopes_.size(0)),
            {dropout_.of(hidden_dropout_, micro_batch, kContextDropout, width),
             dropout_.of(hidden_dropout_, micro_batch, kInnerDropout, width)},
            micro_batch.keep_activations,
            micro_batch.gradient_columns};
  }
  at::Tensor attend(const at::Tensor& qkv, const MicroBatch& micro_batch) const {
    const auto attention = ops::alibi(slopes_, qkv.size(2) / (3 * slopes_.size(0)));
    return attend_so_far(micro_batch, this, ops::split_heads(qkv, attention), attention, [&] {
      return ops::attention_forward(qkv, attention, /*attention_mask=*/{}).output;
    });
  }

  double epsilon_;
  bool residual_post_layernorm_;
  double hidden_dropout_, attention_dropout_;
  BlockDropout dropout_;
  at::Tensor slopes_;
  BloomBlockWeights w_;
};

DecoderParts parts_of(const BloomConfig& config) {
  config.validate();
  return {.config = config,
          .layer_prefix = "h.",
          .table = "word_embeddings.weight",
          .checkpoint_prefix = "transformer.",
          .embedding = embedding_of<BloomEmbedding>(config),
          .layer = layers_of<BloomBlock>(config),
          .final_norm = "ln_f",
          .epsilon = config.layer_norm_epsilon,
          .attention_width = config.hidden,
          .tensor_divisor = config.heads};
}

}  // namespace

ModelSpec make_bloom_causal(const BloomConfig& config) { return assemble_causal(parts_of(config)); }

ModelSpec make_bloom_classifier(const BloomConfig& config, int64_t num_labels) {
  return assemble_classifier(parts_of(config), num_labels);
}

}  // namespace tessera
