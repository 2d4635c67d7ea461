// SPDX-License-Identifier: MIT
#pragma once
// BLOOM's decoder block, with its weights as an ordered list.
#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "lib/models/decoder_block.h"
#include "tessera/ops/functional.h"

namespace tessera::testing {

// input norm, qkv, dense, attention norm, up, down: weight and bias of each. Rows of qkv: [heads,
// 3, head_dim].
inline DecoderBlockWeights bloom_weights(const std::vector<at::Tensor>& w) {
  return {.input_norm = {w[0], w[1]},
          .qkv = {{w[2]}, {w[3]}},
          .dense = {{w[4]}, {w[5]}},
          .attention_norm = {w[6], w[7]},
          .up = {{w[8]}, {w[9]}},
          .down = {{w[10]}, {w[11]}}};
}

struct BloomBlockTraining {
  ops::AttentionDropout attention;
  std::array<ops::Dropout, 2> hidden;
  bool save_norm_outputs = false;
  std::shared_ptr<GradientColumns> gradient_columns;
};

inline DecoderBlockOptions bloom_options(const DecoderBlockWeights& w, const at::Tensor& slopes,
                                         double epsilon, bool post, const TensorAxis& axis,
                                         const BloomBlockTraining& training) {
  DecoderBlockOptions options;
  options.epsilon = epsilon;
  options.residual_post_layernorm = post;
  options.attention = ops::alibi(slopes, w.dense.weights[0].size(1) / slopes.numel());
  options.attention.dropout = training.attention;
  options.dropout = training.hidden;
  options.save_norm_outputs = training.save_norm_outputs;
  options.gradient_columns = training.gradient_columns;
  options.axis = axis;
  return options;
}

inline at::Tensor bloom_block_composed(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                       const at::Tensor& slopes, const at::Tensor& mask,
                                       double epsilon, bool post, at::IntArrayRef tokens = {},
                                       const TensorAxis& axis = {}, const PackedRows& packed = {},
                                       const BloomBlockTraining& training = {}) {
  const auto options = bloom_options(weights, slopes, epsilon, post, axis, training);
  return decoder_block_composed(
      hidden, weights, options, tokens, [&](const at::Tensor& qkv, const at::Tensor&) {
        return ops::alibi_attention(qkv, slopes, mask, packed, training.attention);
      });
}

inline at::Tensor bloom_block_fused(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                    const at::Tensor& slopes, const at::Tensor& mask,
                                    double epsilon, bool post, at::IntArrayRef tokens = {},
                                    const TensorAxis& axis = {}, const PackedRows& packed = {},
                                    const BloomBlockTraining& training = {}) {
  const auto options = bloom_options(weights, slopes, epsilon, post, axis, training);
  return decoder_block_fused(hidden, weights, options, tokens, mask, packed);
}

}  // namespace tessera::testing
