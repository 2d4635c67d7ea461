// SPDX-License-Identifier: MIT
#pragma once
// Blocks of GPT-2, Llama and Qwen with random weights, and their cuts on a tensor axis.
#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <vector>

#include "lib/models/decoder_block.h"
#include "lib/models/query_key_norm.h"
#include "lib/models/sink_attention.h"
#include "tessera/core/error.h"
#include "tessera/ops/functional.h"
#include "tests/unit/ops/gradients.h"

namespace tessera::testing {

struct DecoderCase {
  std::string name;
  DecoderBlockWeights weights;
  DecoderBlockOptions options;
  std::vector<TensorCut> cuts;  // of each tensor

  Tensors tensors() const {
    Tensors list;
    DecoderBlockWeights handles = weights;
    for_each_tensor(handles, [&](const at::Tensor& x) { list.push_back(x); });
    return list;
  }
  DecoderBlockWeights with(const Tensors& list) const {
    DecoderBlockWeights result = weights;
    size_t next = 0;
    for_each_tensor(result, [&](at::Tensor& x) { x = list[next++]; });
    return result;
  }
};

struct DecoderSizes {
  int64_t hidden = 24, heads = 4, key_heads = 2, d = 8, inner = 40;
};

inline PackedRows packed_on(at::Device device, const std::vector<int64_t>& lengths,
                            int64_t sequence) {
  MicroBatch batch;
  batch.packed = make_packed_rows(lengths, sequence);
  return batch.to(device).packed;
}

namespace detail {

inline at::Tensor matrix(int64_t rows, int64_t columns, int64_t in) {
  return at::randn({rows, columns}) / std::sqrt(double(in));
}
inline at::Tensor vector(int64_t n, double centre) { return centre + 0.3 * at::randn({n}); }

}  // namespace detail

inline DecoderCase gpt2_case(const DecoderSizes& s) {
  const auto product = [](int64_t in, int64_t out) {
    return ProductWeights{{detail::matrix(in, out, in)}, {detail::vector(out, 0)}, true};
  };
  const auto norm = [&] {
    return NormWeights{detail::vector(s.hidden, 1), detail::vector(s.hidden, 0)};
  };
  const int64_t h = s.hidden, width = s.heads * s.d;
  constexpr TensorCut kWhole{}, kRows{.dim = 0}, kColumns{.dim = 1};
  DecoderCase result{
      "GPT-2",
      {norm(), product(h, 3 * width), product(width, h), norm(), product(h, s.inner),
       product(s.inner, h)},
      {},
      {kWhole, kWhole, TensorCut{.dim = 1, .parts = 3}, TensorCut{.dim = 0, .parts = 3}, kRows,
       kWhole, kWhole, kWhole, kColumns, kRows, kRows, kWhole}};
  result.options.attention = {.heads = s.heads, .key_heads = s.heads, .scale = 0.3};
  return result;
}

inline DecoderCase llama_case(const DecoderSizes& s, bool biases) {
  std::vector<TensorCut> cuts;
  const auto norm = [&] {
    cuts.push_back({});
    return NormWeights{detail::vector(s.hidden, 1), {}};
  };
  const auto product = [&](int64_t in, const std::vector<int64_t>& outs, int dim) {
    ProductWeights result;
    for (const int64_t out : outs) {
      result.weights.push_back(detail::matrix(out, in, in));
      cuts.push_back({.dim = dim});
    }
    for (const int64_t out : outs) {
      if (!biases) break;
      result.biases.push_back(detail::vector(out, 0));
      cuts.push_back({.dim = dim == 0 ? 0 : -1});
    }
    return result;
  };
  const int64_t h = s.hidden, width = s.heads * s.d, key_width = s.key_heads * s.d;
  DecoderCase result{biases ? "Llama with biases" : "Llama", {}, {}, {}};
  DecoderBlockWeights& w = result.weights;
  w.input_norm = norm();
  w.qkv = product(h, {width, key_width, key_width}, 0);
  w.dense = product(width, {h}, 1);
  w.attention_norm = norm();
  w.up = product(h, {s.inner, s.inner}, 0);
  w.down = product(s.inner, {h}, 1);
  result.cuts = cuts;
  result.options.gated = true;
  result.options.rotary = ops::rotary_tables(ops::rotary_frequencies(s.d, {.theta = 100}), 64);
  result.options.attention = {.heads = s.heads, .key_heads = s.key_heads, .scale = 0.3};
  return result;
}

// Head norms, biases for queries, keys and values only, and a window.
inline DecoderCase qwen_case(const DecoderSizes& s) {
  DecoderCase result = llama_case(s, false);
  result.name = "Qwen";
  DecoderBlockWeights& w = result.weights;
  std::vector<TensorCut> biases;
  for (const at::Tensor& weight : w.qkv.weights) {
    w.qkv.biases.push_back(detail::vector(weight.size(0), 0));
    biases.push_back({.dim = 0});
  }
  result.cuts.insert(result.cuts.begin() + 4, biases.begin(), biases.end());
  w.query_norm = detail::vector(s.d, 1), w.key_norm = detail::vector(s.d, 1);
  result.cuts.insert(result.cuts.end(), 2, {.partial_gradient = true});
  result.options.attention.window = 3;
  return result;
}

// Experts, of which each token takes `used`; norms of all query and all key heads together.
inline DecoderCase expert_case(const DecoderSizes& s, int64_t experts, int64_t used) {
  DecoderCase result = llama_case(s, false);
  result.name = std::to_string(used) + " of " + std::to_string(experts) + " experts";
  DecoderBlockWeights& w = result.weights;
  w.up = {}, w.down = {};
  const auto each = [&](int64_t out, int64_t in) {
    return at::randn({experts, out, in}) / std::sqrt(double(in));
  };
  w.experts = {2 * detail::matrix(experts, s.hidden, s.hidden), each(2 * s.inner, s.hidden),
               each(s.hidden, s.inner)};
  w.query_norm = detail::vector(s.heads * s.d, 1),
  w.key_norm = detail::vector(s.key_heads * s.d, 1);
  const TensorCut partial{.partial_gradient = true};
  result.cuts.resize(result.cuts.size() - 3);
  for (const TensorCut& cut :
       {partial, TensorCut{.dim = 1, .parts = 2}, TensorCut{.dim = 2}, partial, partial}) {
    result.cuts.push_back(cut);
  }
  result.options.routing = {used, used == 2};
  return result;
}

// A shared expert with a gate, routing by sigmoids with a bias, heads rotated in part.
inline DecoderCase shared_case(const DecoderSizes& s, int64_t experts, int64_t used) {
  DecoderCase result = llama_case(s, false);
  result.name = "shared, " + std::to_string(used) + " of " + std::to_string(experts) + " experts";
  DecoderBlockWeights& w = result.weights;
  const auto each = [&](int64_t out, int64_t in) {
    return at::randn({experts, out, in}) / std::sqrt(double(in));
  };
  w.experts = {2 * detail::matrix(experts, s.hidden, s.hidden), each(2 * s.inner, s.hidden),
               each(s.hidden, s.inner)};
  w.shared_gate.weights = {2 * detail::matrix(1, s.hidden, s.hidden)};
  const TensorCut partial{.partial_gradient = true};
  for (const TensorCut& cut :
       {partial, TensorCut{.dim = 1, .parts = 2}, TensorCut{.dim = 2}, partial}) {
    result.cuts.push_back(cut);
  }
  result.options.routing = {used, used % 2 == 0, /*sigmoid=*/true, 1.5, 0.3 * at::randn({experts})};
  result.options.rotary = ops::rotary_tables(ops::rotary_frequencies(s.d / 2, {.theta = 100}), 64);
  return result;
}

// gpt-oss: sinks, a window, biases, and experts with biases and a clamped activation.
inline DecoderCase sink_case(const DecoderSizes& s, int64_t experts) {
  DecoderCase result = llama_case(s, true);
  result.name = "gpt-oss";
  DecoderBlockWeights& w = result.weights;
  w.up = {}, w.down = {};
  w.sinks = detail::vector(s.heads, 0.5);
  const auto each = [&](int64_t in, int64_t out) {
    return 3 * at::randn({experts, in, out}) / std::sqrt(double(in));
  };
  w.experts = {2 * detail::matrix(experts, s.hidden, s.hidden), each(s.hidden, 2 * s.inner),
               each(s.inner, s.hidden)};
  w.experts.clamped = true;
  w.experts.router_bias = detail::vector(experts, 0);
  w.experts.up_bias = at::randn({experts, 2 * s.inner});
  w.experts.down_bias = at::randn({experts, s.hidden});
  result.options.routing = {2, true};
  result.options.attention.window = 3;
  return result;
}

// Adapters on every weight except one.
inline DecoderCase with_adapters(DecoderCase test, double dropout = 0) {
  test.name += " with adapters";
  constexpr int64_t kRank = 3;
  std::vector<TensorCut> cuts;
  auto old = test.cuts.begin();
  DecoderBlockWeights& w = test.weights;
  const auto keep = [&](size_t count) {
    cuts.insert(cuts.end(), old, old + static_cast<int64_t>(count));
    old += static_cast<int64_t>(count);
  };
  const auto adapt = [&](ProductWeights& p, bool inputs_cut) {
    const int parts = old->parts;
    keep(p.weights.size() + p.biases.size());
    p.adapters.resize(p.weights.size());
    const bool partly = p.weights.size() > 2;  // keys have none
    const TensorCut whole{.partial_gradient = true};
    for (const bool of_b : {false, true}) {
      for (size_t i = 0; i < p.weights.size(); ++i) {
        if (partly && i == 1) continue;
        const int64_t in = p.weights[i].numel() / p.outputs(i);
        if (of_b) {
          p.adapters[i].b = detail::matrix(p.outputs(i), kRank, kRank);
          cuts.push_back(inputs_cut ? whole : TensorCut{.dim = 0, .parts = parts});
        } else {
          p.adapters[i].a = detail::matrix(kRank, in, in);
          cuts.push_back(inputs_cut ? TensorCut{.dim = 1} : whole);
        }
      }
    }
  };
  keep(w.input_norm.bias.defined() ? 2 : 1);
  adapt(w.qkv, false);
  adapt(w.dense, true);
  keep(w.attention_norm.bias.defined() ? 2 : 1);
  adapt(w.up, false);
  adapt(w.down, true);
  cuts.insert(cuts.end(), old, test.cuts.end());
  test.cuts = cuts;
  test.options.adapters = {.scale = 0.4, .dropout = dropout, .seed = 77};
  return test;
}

// Adapters of attention, of the shared expert and of its gate.
inline DecoderCase with_shared_adapters(DecoderCase test, double dropout = 0) {
  test = with_adapters(std::move(test), dropout);
  const int64_t h = test.weights.shared_gate.weights[0].size(1);
  test.weights.shared_gate.adapters = {{detail::matrix(3, h, h), detail::matrix(1, 3, 3)}};
  test.cuts.resize(test.cuts.size() + 2, {.partial_gradient = true});
  return test;
}

// Adapters of attention, of every expert's gate and up (or of one of them alone, or of both
// together), and of down.
enum class UpAdapters { kGateAndUp, kUpAlone, kJoint };
inline DecoderCase with_expert_adapters(DecoderCase test, UpAdapters kind, double dropout = 0) {
  test = with_adapters(std::move(test), dropout);
  test.name += concat(" of experts, kind ", int(kind));
  constexpr int64_t kRank = 2;
  ExpertWeights& w = test.weights.experts;
  const int64_t parts = kind == UpAdapters::kJoint ? 1 : 2;
  const auto made = [&](const at::Tensor& weight, int64_t of) {
    const int64_t experts = weight.size(0), in = weight.size(2);
    return LoraWeights{at::randn({experts, kRank, in}) / std::sqrt(double(in)),
                       at::randn({experts, weight.size(1) / of, kRank})};
  };
  std::vector<TensorCut> cuts;
  const TensorCut partial{.partial_gradient = true};
  w.up_adapters.resize(static_cast<size_t>(parts));
  for (size_t i = kind == UpAdapters::kUpAlone; i < w.up_adapters.size(); ++i) {
    w.up_adapters[i] = made(w.up, parts);
    cuts.push_back(partial);
  }
  cuts.resize(2 * cuts.size(), {.dim = 1, .parts = parts == 1 ? 2 : 1});
  w.down_adapters = {made(w.down, 1)};
  cuts.push_back({.dim = 2});
  cuts.push_back(partial);
  test.cuts.insert(test.cuts.end() - 2, cuts.begin(), cuts.end());  // before the heads' norms
  return test;
}

inline DecoderCase with_exact_gelu(DecoderCase test) {
  test.name += " with the exact GELU";
  test.options.exact_gelu = true;
  return test;
}

inline std::vector<DecoderCase> decoder_cases(const DecoderSizes& s) {
  return {gpt2_case(s),
          llama_case(s, false),
          llama_case(s, true),
          qwen_case(s),
          with_adapters(gpt2_case(s)),
          with_adapters(llama_case(s, false)),
          with_adapters(llama_case(s, false), 0.3),
          with_exact_gelu(gpt2_case(s))};
}

// Attention's draws differ between devices, and between versions on the GPU.
inline DecoderCase with_dropout(DecoderCase test, bool attention) {
  test.name += " with dropout";
  test.options.dropout = {ops::Dropout{0.2, 31}, ops::Dropout{0.4, 32}};
  if (attention) test.options.attention.dropout = {0.3, 33};
  return test;
}

enum class Version { kComposed, kFused };

// Runs a version with every optional part of a micro-batch.
inline at::Tensor run_decoder(Version version, const at::Tensor& hidden,
                              const DecoderBlockWeights& weights, DecoderBlockOptions options,
                              at::IntArrayRef tokens, const at::Tensor& mask = {},
                              const PackedRows& packed = {}) {
  if (packed.defined()) options.positions = packed.positions;
  if (version == Version::kFused && weights.sinks.defined()) {
    const auto attend = [attention = options.attention, packed](const at::Tensor& qkv,
                                                                const at::Tensor& sinks) {
      return tessera::detail::sink_attention(qkv, attention, sinks, packed, nullptr);
    };
    return decoder_block_fused(hidden, weights, options, tokens, {}, {}, attend);
  }
  if (version == Version::kFused) {
    return decoder_block_fused(hidden, weights, options, tokens, mask, packed);
  }
  const auto composed = [&](const at::Tensor& qkv, const at::Tensor&) {
    auto [q, k, v] = ops::split_heads(qkv, options.attention);
    if (weights.query_norm.defined()) {
      q = tessera::detail::query_or_key_norm(q, weights.query_norm, options.epsilon, options.axis);
      k = tessera::detail::query_or_key_norm(k, weights.key_norm, options.epsilon, options.axis);
    }
    if (options.rotary.cos.defined()) {
      q = ops::rotary(q, options.rotary, options.positions);
      k = ops::rotary(k, options.rotary, options.positions);
    }
    const ops::AttentionDropout& dropout = options.attention.dropout;
    return ops::causal_attention(q, k, v, mask,
                                 {.scale = options.attention.scale,
                                  .dropout = dropout.probability,
                                  .seed = dropout.seed,
                                  .first_head = dropout.first_head,
                                  .window = options.attention.window,
                                  .sinks = weights.sinks},
                                 packed);
  };
  return decoder_block_composed(hidden, weights, options, tokens, composed);
}

// Puts the tensors, and their gradients (0.5 everywhere), into one buffer each as a strategy does,
// `gap` elements apart.
inline void lay_side_by_side(Tensors& leaves, int64_t gap = 0) {
  int64_t count = 0;
  for (const at::Tensor& x : leaves) count += x.numel() + gap;
  const at::Tensor values = at::empty({count}, leaves[0].options().requires_grad(false));
  const at::Tensor gradients = at::full_like(values, 0.5);
  int64_t at = 0;
  for (at::Tensor& x : leaves) {
    const auto cut = [&](const at::Tensor& buffer) {
      return buffer.narrow(0, at, x.numel()).view(x.sizes());
    };
    cut(values).copy_(x.detach());
    x.set_data(cut(values));
    x.mutable_grad() = cut(gradients);
    at += x.numel() + gap;
  }
}

}  // namespace tessera::testing
