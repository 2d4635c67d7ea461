#include "tessera/models/llama.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "lib/models/assemble.h"
#include "lib/models/so_far.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// Everything but the heads' own weights lives under "model.".
std::string checkpoint_name(const std::string& block, const std::string& parameter) {
  if (parameter == "lm_head.weight" || parameter == "score.weight") return parameter;
  return "model." + (block.starts_with("layers.") ? block + "." : "") + parameter;
}

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const LlamaConfig& config, BlockWeights weights)
      : axis_(weights.axis()), vocabulary_(config.vocabulary), pad_token_(config.pad_token) {
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
  bool takes_packed_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }
  bool continues_rows() const override { return true; }

 private:
  TensorAxis axis_;
  int64_t vocabulary_;
  std::optional<int64_t> pad_token_;  // looked up like any other, but never trained by it
  at::Tensor table_;
  std::vector<Parameter> parameters_;
};

struct Linear {
  at::Tensor weight, bias;
  at::Tensor operator()(const at::Tensor& x) const { return ops::linear(x, weight, bias); }
};

class LlamaBlock final : public Block {
 public:
  LlamaBlock(const LlamaConfig& config, const BuildContext& context, BlockWeights weights,
             size_t index)
      : config_(config), axis_(weights.axis()), seed_(block_seed(context.seed, index)) {
    frequencies_ = ops::rotary_frequencies(config.head_dim, config.rope_theta,
                                           config.rope_linear_factor, config.rope_llama3)
                       .to(context.device);
    const int64_t h = config.hidden, width = config.heads * config.head_dim;
    const int64_t key_width = config.key_heads * config.head_dim;
    constexpr int kRows = 0, kColumns = 1;  // of the weight, which the ranks share
    auto norm = [&](const std::string& name) {
      return weights.constant(name + ".weight", {h}, 1.0);
    };
    auto linear = [&](const std::string& name, int64_t in, int64_t out, int dim, bool with_bias) {
      Linear made;
      made.weight =
          weights.normal(name + ".weight", {out, in}, config.initializer_range, {.dim = dim});
      const TensorCut with_rows{.dim = dim == kRows ? 0 : -1};
      if (with_bias) made.bias = weights.constant(name + ".bias", {out}, 0.0, with_rows);
      return made;
    };
    norm1_ = norm("input_layernorm");
    query_ = linear("self_attn.q_proj", h, width, kRows, config.attention_bias);
    key_ = linear("self_attn.k_proj", h, key_width, kRows, config.attention_bias);
    value_ = linear("self_attn.v_proj", h, key_width, kRows, config.attention_bias);
    output_ = linear("self_attn.o_proj", width, h, kColumns, config.attention_bias);
    norm2_ = norm("post_attention_layernorm");
    gate_ = linear("mlp.gate_proj", h, config.inner, kRows, config.mlp_bias);
    up_ = linear("mlp.up_proj", h, config.inner, kRows, config.mlp_bias);
    down_ = linear("mlp.down_proj", config.inner, h, kColumns, config.mlp_bias);
    parameters_ = weights.take();
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const at::IntArrayRef tokens = micro_batch.input_ids.sizes();
    const at::Tensor context =
        attend(enter_tensor_ranks(norm(hidden, norm1_), tokens, axis_), micro_batch);
    const at::Tensor attended =
        hidden + row_parallel_linear(context, output_.weight, output_.bias, axis_);
    const at::Tensor normed = enter_tensor_ranks(norm(attended, norm2_), tokens, axis_);
    return attended + row_parallel_linear(ops::swiglu(gate_(normed), up_(normed)), down_.weight,
                                          down_.bias, axis_);
  }
  bool takes_packed_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }
  bool continues_rows() const override { return true; }

 private:
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const {
    return ops::rms_norm(x, weight, config_.rms_norm_epsilon);
  }

  at::Tensor attend(const at::Tensor& normed, const MicroBatch& micro_batch) {
    const auto by_head = [&](const at::Tensor& x) {
      return x.unflatten(2, {-1, config_.head_dim});
    };
    const ops::RotaryTables tables = tables_of(micro_batch);
    ops::CausalAttentionOptions options{
        .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
        .first_head = axis_.rank() * config_.heads / axis_.size()};
    if (micro_batch.training) {
      options.dropout = config_.attention_dropout;
      options.seed = block_seed(micro_batch.seed, seed_);
    }
    const at::Tensor query = ops::rotary(by_head(query_(normed)), tables);
    const at::Tensor key = ops::rotary(by_head(key_(normed)), tables);
    const at::Tensor value = by_head(value_(normed));
    return attend_so_far(micro_batch, this, query, key, value, options.scale, /*slopes=*/{}, [&] {
      return ops::causal_attention(query, key, value, micro_batch.attention_mask, options,
                                   micro_batch.packed);
    });
  }

  // Of the micro-batch's positions.
  ops::RotaryTables tables_of(const MicroBatch& micro_batch) {
    const PackedRows& packed = micro_batch.packed;
    const RowsSoFar& rows = micro_batch.so_far;
    if (packed.defined())
      return ops::at_positions(tables_for(packed.position_count), packed.positions);
    if (!rows.begun()) return tables_for(micro_batch.input_ids.size(1));
    return ops::at_positions(tables_for(rows.cache->capacity()), rows.lengths.unsqueeze(1));
  }

  // Batches of one length follow each other, mostly.
  const ops::RotaryTables& tables_for(int64_t length) {
    if (!tables_.cos.defined() || tables_.cos.size(0) != length) {
      const at::NoGradGuard no_grad;
      tables_ = ops::rotary_tables(frequencies_, length);
    }
    return tables_;
  }

  LlamaConfig config_;
  TensorAxis axis_;
  uint64_t seed_;
  at::Tensor frequencies_;
  ops::RotaryTables tables_;
  at::Tensor norm1_, norm2_;
  Linear query_, key_, value_, output_, gate_, up_, down_;
  std::vector<Parameter> parameters_;
};

DecoderParts parts_of(const LlamaConfig& config) {
  config.validate();
  DecoderParts parts;
  parts.config = config;
  parts.layer_prefix = "layers.";
  parts.table = "embed_tokens.weight";
  parts.checkpoint_name = checkpoint_name;
  parts.embedding = [config](const BuildContext&, BlockWeights weights) {
    return std::make_unique<EmbeddingBlock>(config, std::move(weights));
  };
  parts.layer = [config](const BuildContext& context, BlockWeights weights, size_t index) {
    return std::make_unique<LlamaBlock>(config, context, std::move(weights), index);
  };
  parts.final_norm = "norm";
  parts.rms_norm = true;
  parts.epsilon = config.rms_norm_epsilon;
  parts.attention_width = config.heads * config.head_dim;
  parts.tensor_divisor = std::gcd(config.key_heads, config.inner);
  return parts;
}

}  // namespace

ModelSpec make_llama_causal(const LlamaConfig& config) { return assemble_causal(parts_of(config)); }

ModelSpec make_llama_classifier(const LlamaConfig& config, int64_t num_labels) {
  return assemble_classifier(parts_of(config), num_labels);
}

}  // namespace tessera
