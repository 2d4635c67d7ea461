#include "tessera/models/bloom.h"

#include <ATen/ATen.h>

#include <utility>

#include "lib/models/block_weights.h"
#include "lib/models/costs.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/bloom_block.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// The names of transformers: everything but the heads' own weights lives under "transformer.".
std::string checkpoint_name(const std::string& block, const std::string& parameter) {
  if (parameter == "lm_head.weight" || parameter == "score.weight") return parameter;
  return "transformer." + (block.starts_with("h.") ? block + "." : "") + parameter;
}

BlockWeights weights_of(const BuildContext& context, size_t index, const std::string& block) {
  return BlockWeights(context, index, [block](const std::string& parameter) {
    return checkpoint_name(block, parameter);
  });
}

// Tensor parallelism cuts tables by rows, attention by heads and the feed-forward by its inner
// columns.
constexpr TensorCut kVocabularyRows{.dim = 0, .padded = true};

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const BloomConfig& config, BlockWeights weights)
      : axis_(weights.axis()), vocabulary_(config.vocabulary), epsilon_(config.layer_norm_epsilon) {
    const int64_t h = config.hidden;
    table_ = weights.normal("word_embeddings.weight", {config.vocabulary, h},
                            config.initializer_range, kVocabularyRows);
    norm_weight_ = weights.constant("word_embeddings_layernorm.weight", {h}, 1.0);
    norm_bias_ = weights.constant("word_embeddings_layernorm.bias", {h}, 0.0);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor&, const MicroBatch& micro_batch) override {
    return ops::layer_norm(
        vocab_parallel_embedding(micro_batch.input_ids, table_, vocabulary_, axis_),
        for_own_tokens(norm_weight_, axis_), for_own_tokens(norm_bias_, axis_), epsilon_);
  }
  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  TensorAxis axis_;
  int64_t vocabulary_;
  double epsilon_;
  at::Tensor table_, norm_weight_, norm_bias_;
  std::vector<Parameter> parameters_;
};

class BloomBlock final : public Block {
 public:
  BloomBlock(const BloomConfig& config, at::Device device, BlockWeights weights)
      : axis_(weights.axis()),
        epsilon_(config.layer_norm_epsilon),
        residual_post_layernorm_(config.residual_post_layernorm) {
    const int64_t heads = config.heads / axis_.size();
    slopes_ = ops::alibi_slopes(config.heads).narrow(0, axis_.rank() * heads, heads).to(device);
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
    const auto version = mask.defined()     ? &bloom_block_padded
                         : hidden.is_cuda() ? &bloom_block_fused
                                            : &bloom_block_composed;
    return version(hidden, w_, slopes_, mask, epsilon_, residual_post_layernorm_,
                   micro_batch.input_ids.sizes(), axis_);
  }
  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  TensorAxis axis_;
  double epsilon_;
  bool residual_post_layernorm_;
  at::Tensor slopes_;
  BloomBlockWeights w_;
  std::vector<Parameter> parameters_;
};

// The final norm, which both heads share.
class BloomHeadBlock : public Head {
 public:
  std::vector<Parameter> parameters() override { return parameters_; }

 protected:
  BloomHeadBlock(const BloomConfig& config, BlockWeights& weights)
      : axis_(weights.axis()),
        epsilon_(config.layer_norm_epsilon),
        norm_weight_(weights.constant("ln_f.weight", {config.hidden}, 1.0)),
        norm_bias_(weights.constant("ln_f.bias", {config.hidden}, 0.0)) {}
  // Of the rank's own tokens, or of tokens that every rank has.
  at::Tensor norm_own(const at::Tensor& hidden) const {
    return ops::layer_norm(hidden, for_own_tokens(norm_weight_, axis_),
                           for_own_tokens(norm_bias_, axis_), epsilon_);
  }
  at::Tensor norm_whole(const at::Tensor& hidden) const {
    return ops::layer_norm(hidden, norm_weight_, norm_bias_, epsilon_);
  }
  std::vector<Parameter> parameters_;
  TensorAxis axis_;

 private:
  double epsilon_;
  at::Tensor norm_weight_, norm_bias_;
};

class CausalHead final : public BloomHeadBlock {
 public:
  CausalHead(const BloomConfig& config, const TensorSource* source, BlockWeights weights)
      : BloomHeadBlock(config, weights), vocabulary_(config.vocabulary) {
    const std::vector<int64_t> shape = {config.vocabulary, config.hidden};
    if (config.tied_head && source != nullptr) check_tied(*source, shape);
    weight_ = config.tied_head ? weights.alias("word_embeddings.weight", shape, kVocabularyRows)
                               : weights.normal("lm_head.weight", shape, config.initializer_range,
                                                kVocabularyRows);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    return vocab_parallel_cross_entropy(norm_own(hidden), weight_, micro_batch.labels,
                                        micro_batch.loss_gradient, vocabulary_, axis_)
        .reshape({1});
  }
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::Tensor own =
        column_parallel_linear(norm_own(hidden), weight_, {}, micro_batch.input_ids.sizes(), axis_);
    return gather_columns(own, vocabulary_, axis_);
  }

 private:
  // Some directories store the tied head once more; a different one would be lost silently.
  static void check_tied(const TensorSource& source, at::IntArrayRef shape) {
    if (!source.has("lm_head.weight")) return;
    const std::string table = checkpoint_name("embedding", "word_embeddings.weight");
    check(at::equal(source.read("lm_head.weight", shape), source.read(table, shape)),
          ErrorCode::kDataLoss, "lm_head.weight differs from ", table,
          ", but config.json ties them; set \"tie_word_embeddings\": false to train both");
  }

  int64_t vocabulary_;
  at::Tensor weight_;
};

class ClassificationHead final : public BloomHeadBlock {
 public:
  ClassificationHead(const BloomConfig& config, int64_t num_labels, BlockWeights weights)
      : BloomHeadBlock(config, weights), pad_token_(config.pad_token) {
    weight_ = weights.optional_normal("score.weight", {num_labels, config.hidden},
                                      config.initializer_range);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::Tensor scores = logits(hidden, micro_batch).to(at::kFloat);
    const at::Tensor loss = at::nll_loss(scores.log_softmax(-1), micro_batch.labels, {},
                                         at::Reduction::Sum, kIgnoredLabel);
    const at::Tensor correct = scores.detach().argmax(-1).eq(micro_batch.labels).sum();
    return at::stack({loss, correct.to(at::kFloat)});
  }
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::Tensor all = axis_.sequence_parallel()
                               ? gather_whole_tokens(hidden, micro_batch.input_ids.sizes(), axis_)
                               : hidden;
    const at::Tensor last = last_token(micro_batch).view({-1, 1, 1}).expand({-1, 1, all.size(2)});
    return ops::linear(norm_whole(all.gather(1, last).squeeze(1)), weight_, {});
  }

 private:
  // [batch] int64: position of the rightmost id that is not padding; 0 in a row of nothing but
  // padding, as in transformers.
  at::Tensor last_token(const MicroBatch& micro_batch) const {
    const at::Tensor& ids = micro_batch.input_ids;
    const at::Tensor positions = at::arange(ids.size(1), ids.options());
    if (pad_token_) return (positions * ids.ne(*pad_token_)).argmax(-1);
    if (micro_batch.attention_mask.defined()) {
      return (positions * micro_batch.attention_mask).argmax(-1);
    }
    return at::full({ids.size(0)}, ids.size(1) - 1, ids.options());
  }

  std::optional<int64_t> pad_token_;
  at::Tensor weight_;
};

// Everything below the head.
ModelSpec make_body(const BloomConfig& config) {
  config.validate();
  ModelSpec spec;
  spec.name = config.name;
  spec.tensor_divisor = config.heads;
  spec.checkpoint_name = checkpoint_name;
  spec.blocks.push_back({"embedding", [config](const BuildContext& context) {
                           return std::make_unique<EmbeddingBlock>(
                               config, weights_of(context, 0, "embedding"));
                         }});
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string name = "h." + std::to_string(i);
    spec.blocks.push_back({name, [config, name, i](const BuildContext& context) {
                             return std::make_unique<BloomBlock>(
                                 config, context.device,
                                 weights_of(context, static_cast<size_t>(i) + 1, name));
                           }});
  }
  return spec;
}

}  // namespace

ModelSpec make_bloom_causal(const BloomConfig& config) {
  ModelSpec spec = make_body(config);
  const size_t index = spec.blocks.size();
  spec.blocks.push_back({"head", [config, index](const BuildContext& context) {
                           return std::make_unique<CausalHead>(config, context.source,
                                                               weights_of(context, index, "head"));
                         }});
  if (config.tied_head) {
    spec.tied.push_back({"embedding", "word_embeddings.weight", "head", "word_embeddings.weight"});
  }
  fill_costs(spec, config.hidden);
  return spec;
}

ModelSpec make_bloom_classifier(const BloomConfig& config, int64_t num_labels) {
  check(num_labels >= 2, ErrorCode::kInvalidArgument, "model ", config.name,
        ": a classifier needs at least 2 labels, not ", num_labels);
  ModelSpec spec = make_body(config);
  const size_t index = spec.blocks.size();
  spec.blocks.push_back({"head", [config, index, num_labels](const BuildContext& context) {
                           return std::make_unique<ClassificationHead>(
                               config, num_labels, weights_of(context, index, "head"));
                         }});
  fill_costs(spec, config.hidden);
  return spec;
}

}  // namespace tessera
