#include "tessera/models/gpt2.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "lib/model/tensor_collectives.h"
#include "lib/models/assemble.h"
#include "lib/models/so_far.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// Everything but the heads' own weights lives under "transformer.".
std::string checkpoint_name(const std::string& block, const std::string& parameter) {
  if (parameter == "lm_head.weight" || parameter == "score.weight") return parameter;
  return "transformer." + (block.starts_with("h.") ? block + "." : "") + parameter;
}

// Where dropout stands in a block; its part of the seed.
enum DropoutPlace : size_t { kEmbeddingDropout, kAttentionDropout, kContextDropout, kInnerDropout };

class Dropout {
 public:
  Dropout(const BuildContext& context, size_t block_index)
      : axis_(context), block_(block_seed(context.seed, block_index)) {}
  uint64_t seed(const MicroBatch& micro_batch, DropoutPlace place) const {
    return block_seed(block_seed(micro_batch.seed, block_), place);
  }
  // x between tensor-parallel layers: every rank draws for all tokens, so that it does not matter
  // which of them are its own.
  at::Tensor operator()(const at::Tensor& x, double probability, const MicroBatch& micro_batch,
                        DropoutPlace place) const {
    if (!micro_batch.training || probability == 0) return x;
    const uint64_t drawn_from = seed(micro_batch, place);
    if (!axis_.sequence_parallel()) return ops::dropout(x, probability, drawn_from);
    std::vector<int64_t> whole = micro_batch.input_ids.sizes().vec();
    whole.push_back(x.size(-1));
    const at::Tensor ones = at::ones(whole, x.options());
    return x * own_tokens(ops::dropout(ones, probability, drawn_from), axis_);
  }

 private:
  TensorAxis axis_;
  size_t block_;
};

// y = x W + b with W cut by columns, or by rows.
struct Linear {
  at::Tensor weight, bias;

  at::Tensor by_columns(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis) const {
    return ops::linear_in_out(enter_tensor_ranks(x, tokens, axis), weight, bias);
  }
  at::Tensor by_rows(const at::Tensor& x, const TensorAxis& axis) const {
    if (axis.size() == 1) return ops::linear_in_out(x, weight, bias);
    return leave_tensor_ranks(ops::linear_in_out(x, weight, {}), axis) + bias;
  }
};

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const Gpt2Config& config, const BuildContext& context, BlockWeights weights)
      : axis_(weights.axis()),
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
    return dropout_(hidden, probability_, micro_batch, kEmbeddingDropout);
  }
  bool takes_packed_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }
  bool continues_rows() const override { return true; }

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
    return at::embedding(positions_, places);
  }

  TensorAxis axis_;
  int64_t vocabulary_;
  double probability_;
  Dropout dropout_;
  at::Tensor tokens_, positions_;
  std::vector<Parameter> parameters_;
};

class Gpt2Block final : public Block {
 public:
  Gpt2Block(const Gpt2Config& config, const BuildContext& context, BlockWeights weights,
            size_t index)
      : config_(config), axis_(weights.axis()), dropout_(context, index) {
    const int64_t h = config.hidden;
    const double deviation = config.initializer_range;
    const double narrow = deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
    auto norm = [&](const std::string& name, Linear& to) {
      to.weight = weights.constant(name + ".weight", {h}, 1.0);
      to.bias = weights.constant(name + ".bias", {h}, 0.0);
    };
    auto linear = [&](const std::string& name, int64_t in, int64_t out, double spread,
                      const TensorCut& cut, Linear& to) {
      to.weight = weights.normal(name + ".weight", {in, out}, spread, cut);
      const TensorCut with_columns{.dim = cut.dim == 1 ? 0 : -1, .parts = cut.parts};
      to.bias = weights.constant(name + ".bias", {out}, 0.0, with_columns);
    };
    constexpr TensorCut kRows{.dim = 0}, kColumns{.dim = 1}, kQkv{.dim = 1, .parts = 3};
    norm("ln_1", norm1_);
    linear("attn.c_attn", h, 3 * h, deviation, kQkv, qkv_);
    linear("attn.c_proj", h, h, narrow, kRows, projection_);
    norm("ln_2", norm2_);
    linear("mlp.c_fc", h, config.inner, deviation, kColumns, up_);
    linear("mlp.c_proj", config.inner, h, narrow, kRows, down_);
    parameters_ = weights.take();
    if (config.scale_attention) {
      attention_.scale = 1.0 / std::sqrt(static_cast<double>(h / config.heads));
    }
    attention_.first_head = axis_.rank() * config.heads / axis_.size();
    if (config.scale_attention_by_layer) attention_.scale /= static_cast<double>(index);
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    const double residual_dropout = config_.residual_dropout;
    const at::Tensor context = attend(norm(hidden, norm1_), micro_batch);
    const at::Tensor attended =
        hidden + dropout_(context, residual_dropout, micro_batch, kContextDropout);
    const at::Tensor inner = ops::gelu_tanh(
        up_.by_columns(norm(attended, norm2_), micro_batch.input_ids.sizes(), axis_));
    return attended +
           dropout_(down_.by_rows(inner, axis_), residual_dropout, micro_batch, kInnerDropout);
  }
  bool takes_packed_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }
  bool continues_rows() const override { return true; }

 private:
  at::Tensor norm(const at::Tensor& x, const Linear& weights) const {
    return ops::layer_norm(x, weights.weight, weights.bias, config_.layer_norm_epsilon);
  }
  at::Tensor attend(const at::Tensor& normed, const MicroBatch& micro_batch) const {
    const auto qkv = qkv_.by_columns(normed, micro_batch.input_ids.sizes(), axis_)
                         .unflatten(2, {3, config_.heads / axis_.size(), -1})
                         .unbind(2);
    ops::CausalAttentionOptions options = attention_;
    if (micro_batch.training) {
      options.dropout = config_.attention_dropout;
      options.seed = dropout_.seed(micro_batch, kAttentionDropout);
    }
    const at::Tensor context =
        attend_so_far(micro_batch, this, qkv[0], qkv[1], qkv[2], options.scale, /*slopes=*/{}, [&] {
          return ops::causal_attention(qkv[0], qkv[1], qkv[2], micro_batch.attention_mask, options,
                                       micro_batch.packed);
        });
    return projection_.by_rows(context, axis_);
  }

  Gpt2Config config_;
  TensorAxis axis_;
  Dropout dropout_;
  ops::CausalAttentionOptions attention_;
  Linear norm1_, qkv_, projection_, norm2_, up_, down_;
  std::vector<Parameter> parameters_;
};

DecoderParts parts_of(const Gpt2Config& config) {
  config.validate();
  DecoderParts parts;
  parts.config = config;
  parts.layer_prefix = "h.";
  parts.table = "wte.weight";
  parts.checkpoint_name = checkpoint_name;
  parts.embedding = [config](const BuildContext& context, BlockWeights weights) {
    return std::make_unique<EmbeddingBlock>(config, context, std::move(weights));
  };
  parts.layer = [config](const BuildContext& context, BlockWeights weights, size_t index) {
    return std::make_unique<Gpt2Block>(config, context, std::move(weights), index);
  };
  parts.final_norm = "ln_f";
  parts.epsilon = config.layer_norm_epsilon;
  parts.attention_width = config.hidden;
  parts.tensor_divisor = std::gcd(config.heads, config.inner);
  return parts;
}

}  // namespace

ModelSpec make_gpt2_causal(const Gpt2Config& config) { return assemble_causal(parts_of(config)); }

ModelSpec make_gpt2_classifier(const Gpt2Config& config, int64_t num_labels) {
  return assemble_classifier(parts_of(config), num_labels);
}

}  // namespace tessera
