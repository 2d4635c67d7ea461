// SPDX-License-Identifier: MIT
#include "tests/support/plain_models.h"

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/model/lora.h"
#include "tests/support/plain_dropout.h"
#include "tests/support/plain_experts.h"
#include "tests/support/plain_fp8.h"

namespace tessera::testing {
namespace {

using Parameters = std::map<std::string, at::Tensor>;

// One block's parameters by local names.
class Weights {
 public:
  Weights(const Parameters& all, std::string block, const BlockContext& context = {})
      : all_(all),
        prefix_(std::move(block) + "."),
        fp8_(context.fp8),
        fp8_layers_(context.fp8_layers) {}
  const at::Tensor& operator[](const std::string& name) const { return all_.at(prefix_ + name); }
  at::Tensor optional(const std::string& name) const {
    const auto found = all_.find(prefix_ + name);
    return found == all_.end() ? at::Tensor() : found->second;
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name, double epsilon) const {
    return at::layer_norm(x, {x.size(-1)}, (*this)[name + ".weight"], (*this)[name + ".bias"],
                          epsilon);
  }
  // weight [out, in]
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return linears(x, {name}).front();
  }
  // Layers of one input, which in 8 bits have one product.
  std::vector<at::Tensor> linears(const at::Tensor& x,
                                  const std::vector<std::string>& names) const {
    std::vector<at::Tensor> results;
    if (!in_fp8(names.front())) {
      for (const std::string& name : names) {
        const at::Tensor y = at::linear(x, (*this)[name + ".weight"], optional(name + ".bias"));
        results.push_back(adapted(y, x, name));
      }
      return results;
    }
    std::vector<at::Tensor> weights;
    std::vector<int64_t> outputs;
    for (const std::string& name : names) {
      weights.push_back((*this)[name + ".weight"]);
      outputs.push_back(weights.back().size(0));
    }
    results = plain_fp8_linear(x, at::cat(weights), fp8_).split_with_sizes(outputs, -1);
    for (size_t i = 0; i < names.size(); ++i) {
      const at::Tensor bias = optional(names[i] + ".bias");
      if (bias.defined()) results[i] = results[i] + bias;
      results[i] = adapted(results[i], x, names[i]);
    }
    return results;
  }
  // weight [in, out]
  at::Tensor conv(const at::Tensor& x, const std::string& name) const {
    const at::Tensor weight = (*this)[name + ".weight"];
    const at::Tensor product =
        !in_fp8(name) ? at::matmul(x, weight) : plain_fp8_linear(x, weight.t(), fp8_);
    return adapted(product + (*this)[name + ".bias"], x, name);
  }

 private:
  bool in_fp8(const std::string& name) const {
    if (fp8_ == Fp8::kOff) return false;
    const std::string layer = name.substr(name.rfind('.') + 1);
    if (layer == "q_proj" || layer == "query_key_value" || layer == "c_attn")
      return fp8_layers_.qkv;
    if (layer == "o_proj" || layer == "dense" || name == "attn.c_proj") return fp8_layers_.o;
    if (layer == "gate_proj" || layer == "dense_h_to_4h" || layer == "c_fc") return fp8_layers_.up;
    if (layer == "shared_expert_gate") return false;
    return fp8_layers_.down;
  }
  // y plus the adapter's term for x, if the layer has one.
  at::Tensor adapted(const at::Tensor& y, const at::Tensor& x, const std::string& name) const {
    const at::Tensor a = optional(name + "." + std::string(kLoraA));
    return a.defined() ? y + at::linear(at::linear(x, a), (*this)[name + "." + std::string(kLoraB)])
                       : y;
  }

  const Parameters& all_;
  std::string prefix_;
  Fp8 fp8_;
  Fp8Layers fp8_layers_;
};

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

// Tokens that attend to each other: a packed row, or all rows of an unpacked micro-batch.
struct Span {
  std::optional<int64_t> row;
  int64_t first = 0, length = 0;
};

std::vector<Span> spans_of(const MicroBatch& batch) {
  if (!batch.packed.defined()) return {{.length = batch.input_ids.size(1)}};
  std::vector<Span> spans;
  int64_t first = 0;
  for (const int64_t length : batch.packed.lengths) {
    spans.push_back({static_cast<int64_t>(spans.size()), first, length});
    first += length;
  }
  return spans;
}

// [batch, sequence]; packed rows one behind the other [1, tokens].
at::Tensor ids_of(const MicroBatch& batch) {
  return batch.packed.defined() ? batch.input_ids.reshape({1, -1}) : batch.input_ids;
}

// function(span, its queries, keys and values [batch, heads, length, d]) of all spans.
template <typename Function>
at::Tensor for_each_span(const MicroBatch& batch, const std::vector<at::Tensor>& qkv,
                         const Function& function) {
  std::vector<at::Tensor> results;
  for (const Span& span : spans_of(batch)) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(2, span.first, span.length); };
    results.push_back(function(span, part(qkv[0]), part(qkv[1]), part(qkv[2])));
  }
  return at::cat(results, 1);
}

struct Attention {
  double scale = 1;
  at::Tensor bias = {};    // broadcasts to the scores
  at::Tensor hidden = {};  // padded keys; queries that see no other key get zeros
  int64_t window = 0;      // most keys a query sees; 0: all
  at::Tensor sinks = {};   // [heads]: a score each, of a value 0
  std::function<at::Tensor(const at::Tensor&)> drop = {};  // dropout of probabilities
};

// q, k, v [batch, heads, sequence, d]
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Attention& how) {
  const int64_t n = q.size(2);
  at::Tensor scores = widened(at::matmul(q, k.transpose(2, 3))) * how.scale;
  if (how.bias.defined()) scores = scores + how.bias.to(scores.scalar_type());
  at::Tensor unseen = at::ones({n, n}, at::kBool).triu(1);
  if (how.window > 0) {
    unseen = unseen.logical_or(at::ones({n, n}, at::kBool).tril(-how.window));
  }
  if (how.hidden.defined()) unseen = unseen.logical_or(how.hidden);
  const at::Tensor blind = unseen.all(-1, /*keepdim=*/true);
  // An additive mask large enough to hide a score, as in transformers.
  scores = scores + unseen.to(scores.scalar_type()) * -1e38;
  if (how.sinks.defined()) {
    const at::Tensor last = widened(how.sinks).view({1, -1, 1, 1}).to(scores.scalar_type());
    scores = at::cat({scores, last.expand({q.size(0), -1, n, 1})}, -1);
  }
  at::Tensor probability = scores.softmax(-1).narrow(-1, 0, n);
  // Those of ALiBi attend to all keys instead, as in transformers.
  if (!how.bias.defined()) probability = probability.masked_fill(blind, 0.0);
  if (how.drop) probability = how.drop(probability);
  return at::matmul(probability.to(v.scalar_type()), v).transpose(1, 2).flatten(2);
}

// Keys of padding [batch, 1, 1, sequence]; undefined without.
at::Tensor hidden_keys_of(const MicroBatch& batch) {
  if (!batch.attention_mask.defined()) return {};
  return batch.attention_mask.logical_not().unsqueeze(1).unsqueeze(1);
}

at::Tensor by_head(const at::Tensor& x, int64_t heads) {
  return x.unflatten(2, {heads, -1}).transpose(1, 2);
}

at::Tensor loss_of(const at::Tensor& hidden, const at::Tensor& table, const MicroBatch& batch) {
  const at::Tensor logits = widened(at::linear(hidden, table)).flatten(0, 1);
  return at::cross_entropy_loss(logits, batch.labels.flatten(), {}, at::Reduction::Sum,
                                kIgnoredLabel)
      .reshape({1});
}

const at::Tensor& table_of(const Parameters& all, const std::string& embedding, bool tied) {
  return all.at(tied ? "embedding." + embedding : "head.lm_head.weight");
}

// Press et al. 2022: powers of 2^(-8/n); for other n, every second one of 2n is added.
std::vector<double> slopes_of(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t i = 1; i <= power; ++i) {
    slopes.push_back(std::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(power)));
  }
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < heads; i += 2) {
    slopes.push_back(std::pow(2.0, -4.0 * static_cast<double>(i) / static_cast<double>(power)));
  }
  return slopes;
}

// Statistics in full precision, as in every implementation.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor wide = widened(x);
  const at::Tensor normed = wide * (wide.square().mean(-1, true) + epsilon).rsqrt();
  return (normed * widened(weight)).to(x.scalar_type());
}

// The norm of one head, or of all heads together. x [batch, heads, sequence, d].
at::Tensor head_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (weight.numel() == x.size(3)) return rms_norm(x, weight, epsilon);
  const at::Tensor normed = rms_norm(x.transpose(1, 2).flatten(2), weight, epsilon);
  return by_head(normed, x.size(1));
}

// Rotates pairs (i, i + d/2) of the first d columns by position / theta^(2i/d) (Su et al. 2021).
// x [batch, heads, n, at least d].
at::Tensor rotated(const at::Tensor& x, double theta, int64_t columns) {
  if (columns < x.size(3)) {
    const auto parts = x.split_with_sizes({columns, x.size(3) - columns}, 3);
    return at::cat({rotated(parts[0], theta, columns), parts[1]}, 3);
  }
  const int64_t n = x.size(2), half = x.size(3) / 2;
  const at::Tensor frequency = at::pow(
      at::Scalar(theta), at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angle = at::outer(at::arange(n, at::kDouble), frequency);
  const at::Tensor wide = widened(x);
  const at::Tensor c = angle.cos().to(wide.scalar_type()), s = angle.sin().to(wide.scalar_type());
  const at::Tensor first = wide.narrow(3, 0, half), second = wide.narrow(3, half, half);
  return at::cat({first * c - second * s, second * c + first * s}, 3).to(x.scalar_type());
}

// Beside experts. Its gate multiplies what goes into down, as 8-bit products have it.
at::Tensor shared_expert(const at::Tensor& x, const Weights& w, const DecoderConfig& config) {
  const std::string name = config.shared_gate ? "mlp.shared_expert" : "mlp.shared_experts";
  const auto inner = w.linears(x, {name + ".gate_proj", name + ".up_proj"});
  at::Tensor active = at::silu(inner[0]) * inner[1];
  if (config.shared_gate) active = active * w.linear(x, "mlp.shared_expert_gate").sigmoid();
  return w.linear(active, name + ".down_proj");
}

}  // namespace

PlainForward plain_bloom(const DecoderConfig& config, uint64_t seed) {
  return [=](const Parameters& all, const MicroBatch& batch, const BlockContext& context) {
    const double epsilon = config.epsilon;
    const Weights embedding(all, "embedding");
    at::Tensor x = embedding.norm(at::embedding(embedding["word_embeddings.weight"], ids_of(batch)),
                                  "word_embeddings_layernorm", epsilon);
    const at::Tensor slopes = at::tensor(slopes_of(config.heads), at::kDouble).view({-1, 1, 1});
    const at::Tensor hidden_keys = hidden_keys_of(batch);
    for (int64_t i = 0; i < config.layers; ++i) {
      const Weights w(all, "h." + std::to_string(i), context);
      const Drops drops(context, seed, static_cast<size_t>(i) + 1);
      const at::Tensor normed = w.norm(x, "input_layernorm", epsilon);
      const auto qkv = w.linear(normed, "self_attention.query_key_value")
                           .unflatten(2, {config.heads, 3, -1})
                           .transpose(1, 2)
                           .unbind(3);
      const auto attended = [&](const Span& span, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v) {
        const at::Tensor index = at::arange(span.length, at::kDouble);
        return attend(q, k, v,
                      {.scale = 1 / std::sqrt(static_cast<double>(q.size(3))),
                       .bias = slopes * (index - index.unsqueeze(1)),
                       .hidden = hidden_keys,
                       .drop = [&](const at::Tensor& p) {
                         return drops.probabilities(p, span.row, config.attention_dropout);
                       }});
      };
      const at::Tensor dense =
          w.linear(for_each_span(batch, qkv, attended), "self_attention.dense");
      const bool post = config.residual_post_layernorm;
      x = (post ? normed : x) + drops.tokens(dense, config.residual_dropout, 2);
      const at::Tensor again = w.norm(x, "post_attention_layernorm", epsilon);
      const at::Tensor inner = at::gelu(w.linear(again, "mlp.dense_h_to_4h"), "tanh");
      x = (post ? again : x) +
          drops.tokens(w.linear(inner, "mlp.dense_4h_to_h"), config.residual_dropout, 3);
    }
    return loss_of(Weights(all, "head").norm(x, "ln_f", epsilon),
                   table_of(all, "word_embeddings.weight", config.tied_head), batch);
  };
}

PlainForward plain_gpt2(const DecoderConfig& config, uint64_t seed) {
  return [=](const Parameters& all, const MicroBatch& batch, const BlockContext& context) {
    const double epsilon = config.epsilon;
    const Weights embedding(all, "embedding");
    std::vector<at::Tensor> positions;
    for (const Span& span : spans_of(batch)) {
      positions.push_back(embedding["wpe.weight"].narrow(0, 0, span.length));
    }
    const at::Tensor hidden_keys = hidden_keys_of(batch);
    at::Tensor x = at::embedding(embedding["wte.weight"], ids_of(batch)) + at::cat(positions);
    x = Drops(context, seed, 0).tokens(x, config.embedding_dropout, 0);
    for (int64_t i = 0; i < config.layers; ++i) {
      const Weights w(all, "h." + std::to_string(i), context);
      const Drops drops(context, seed, static_cast<size_t>(i) + 1);
      const auto qkv = w.conv(w.norm(x, "ln_1", epsilon), "attn.c_attn").chunk(3, 2);
      const double scale =
          1 / std::sqrt(static_cast<double>(config.hidden) / static_cast<double>(config.heads));
      const auto of_span = [&](const Span& span, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v) {
        return attend(q, k, v,
                      {.scale = scale, .hidden = hidden_keys, .drop = [&](const at::Tensor& p) {
                         return drops.probabilities(p, span.row, config.attention_dropout);
                       }});
      };
      const at::Tensor attended =
          for_each_span(batch,
                        {by_head(qkv[0], config.heads), by_head(qkv[1], config.heads),
                         by_head(qkv[2], config.heads)},
                        of_span);
      x = x + drops.tokens(w.conv(attended, "attn.c_proj"), config.residual_dropout, 2);
      const at::Tensor inner = w.conv(w.norm(x, "ln_2", epsilon), "mlp.c_fc");
      x = x +
          drops.tokens(w.conv(at::gelu(inner, "tanh"), "mlp.c_proj"), config.residual_dropout, 3);
    }
    return loss_of(Weights(all, "head").norm(x, "ln_f", epsilon),
                   table_of(all, "wte.weight", config.tied_head), batch);
  };
}

PlainForward plain_llama(const DecoderConfig& config, uint64_t seed) {
  return [=](const Parameters& all, const MicroBatch& batch, const BlockContext& context) {
    const double epsilon = config.epsilon;
    const at::Tensor hidden_keys = hidden_keys_of(batch);
    at::Tensor x = at::embedding(all.at("embedding.embed_tokens.weight"), ids_of(batch));
    PlainRouterLosses routers;
    for (int64_t i = 0; i < config.layers; ++i) {
      const Weights w(all, "layers." + std::to_string(i), context);
      const Drops drops(context, seed, static_cast<size_t>(i) + 1);
      const at::Tensor normed = rms_norm(x, w["input_layernorm.weight"], epsilon);
      const auto qkv =
          w.linears(normed, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
      const auto for_queries = [&](const at::Tensor& of_keys) {
        return of_keys.repeat_interleave(config.heads / config.key_head_count(), 1);
      };
      const auto turned = [&](const at::Tensor& x, const std::string& norm) {
        const at::Tensor weight = w.optional("self_attn." + norm + ".weight");
        return rotated(weight.defined() ? head_norm(x, weight, epsilon) : x, config.rotary.theta,
                       config.rotary_columns());
      };
      const auto attended = [&](const Span& span, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v) {
        return attend(turned(q, "q_norm"), for_queries(turned(k, "k_norm")), for_queries(v),
                      {.scale = 1 / std::sqrt(static_cast<double>(q.size(3))),
                       .hidden = hidden_keys,
                       .window = config.window_of(static_cast<size_t>(i)),
                       .sinks = w.optional("self_attn.sinks"),
                       .drop = [&](const at::Tensor& p) {
                         return drops.probabilities(p, span.row, config.attention_dropout);
                       }});
      };
      const at::Tensor context_of_heads =
          for_each_span(batch,
                        {by_head(qkv[0], config.heads), by_head(qkv[1], config.key_head_count()),
                         by_head(qkv[2], config.key_head_count())},
                        attended);
      x = x + w.linear(context_of_heads, "self_attn.o_proj");
      const at::Tensor again = rms_norm(x, w["post_attention_layernorm.weight"], epsilon);
      if (config.clamped_experts) {
        routers.add(again, w["mlp.router.weight"], batch.attention_mask, w["mlp.router.bias"]);
        x = x + plain_clamped_experts(again, config,
                                      [&](const std::string& name) { return w["mlp." + name]; });
        continue;
      }
      if (config.has_experts(static_cast<size_t>(i))) {
        const std::string folder = config.model_type == "mixtral" ? "block_sparse_moe." : "mlp.";
        routers.add(again, w[folder + "gate.weight"], batch.attention_mask);
        x = x + plain_experts(again, w[folder + "gate.weight"], w[folder + "experts.gate_up_proj"],
                              w[folder + "experts.down_proj"], config);
        if (config.shared_inner > 0) x = x + shared_expert(again, w, config);
        continue;
      }
      const auto inner = w.linears(again, {"mlp.gate_proj", "mlp.up_proj"});
      x = x + w.linear(at::silu(inner[0]) * inner[1], "mlp.down_proj");
    }
    const at::Tensor loss = loss_of(rms_norm(x, all.at("head.norm.weight"), epsilon),
                                    table_of(all, "embed_tokens.weight", config.tied_head), batch);
    const at::Tensor of_routers = routers.sum(config);
    if (!context.training || !of_routers.defined()) return loss;
    return loss + of_routers * batch.labels.ne(kIgnoredLabel).sum();
  };
}

}  // namespace tessera::testing
