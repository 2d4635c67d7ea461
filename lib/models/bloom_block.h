#pragma once
// The transformer block of BLOOM as one function of its weights, in versions with one
// signature.
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>

#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/kernels.h"

namespace tessera {

// The block's parameters in the order of the forward pass. h: hidden size. On a tensor axis of T
// ranks a rank holds heads / T heads of query_key_value and its slice of the feed-forward: rows of
// qkv_* and up_*, columns of dense_weight and down_weight divided by T.
struct BloomBlockWeights {
  at::Tensor input_norm_weight, input_norm_bias;  // [h]
  at::Tensor qkv_weight, qkv_bias;                // [3h, h], [3h]; rows are [heads, 3, head_dim]
  at::Tensor dense_weight, dense_bias;            // [h, h], [h]
  at::Tensor attention_norm_weight, attention_norm_bias;  // [h]
  at::Tensor up_weight, up_bias;                          // [4h, h], [4h]
  at::Tensor down_weight, down_bias;                      // [h, 4h], [h]
};

// What training drops, where transformers does, and keeps: nothing unless set.
struct BloomBlockTraining {
  ops::AttentionDropout attention;     // of the probabilities
  std::array<ops::Dropout, 2> hidden;  // of what attention and feed-forward add to the residual
  // bloom_block_fused: see MicroBatch
  bool keep_activations = false;
  std::shared_ptr<GradientColumns> gradient_columns;
};

// hidden [batch, sequence, h] -> the same shape; under sequence parallelism the rank's own tokens
// (tessera/model/tensor_parallel.h). tokens: {batch, sequence}, needed then. slopes: fp32 on
// hidden's device, one for each of the rank's heads.
// attention_mask: [batch, sequence] bool or undefined; packed: rows inside the sequences, without
// a mask. residual_post_layernorm: the residual
// branches start at the norms' outputs instead of their inputs. Composed from tessera::ops; works
// on every device and dtype and is the reference for any faster version.
at::Tensor bloom_block_composed(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                const at::Tensor& slopes, const at::Tensor& attention_mask,
                                double epsilon, bool residual_post_layernorm,
                                at::IntArrayRef tokens = {}, const TensorAxis& axis = {},
                                const PackedRows& packed = {},
                                const BloomBlockTraining& training = {});

// The same with a mask, which must be defined, as transformers computes it: a query that sees no
// key (padding on the left) attends to all keys of its row alike, gradient included, where the
// other versions give 0. The first real token may be the target of such a query.
at::Tensor bloom_block_padded(const at::Tensor& hidden, const BloomBlockWeights& weights,
                              const at::Tensor& slopes, const at::Tensor& attention_mask,
                              double epsilon, bool residual_post_layernorm,
                              at::IntArrayRef tokens = {}, const TensorAxis& axis = {},
                              const PackedRows& packed = {},
                              const BloomBlockTraining& training = {});

// The same with a hand-scheduled backward that keeps only what it needs and adds weight gradients
// to .grad() where that is defined (the Block contract); it hands autograd those of the others.
at::Tensor bloom_block_fused(const at::Tensor& hidden, const BloomBlockWeights& weights,
                             const at::Tensor& slopes, const at::Tensor& attention_mask,
                             double epsilon, bool residual_post_layernorm,
                             at::IntArrayRef tokens = {}, const TensorAxis& axis = {},
                             const PackedRows& packed = {},
                             const BloomBlockTraining& training = {});

// The forward pass alone, without gradients and with any attention: qkv [batch, sequence, 3h] ->
// [batch, sequence, h], both of the rank's heads.
at::Tensor bloom_block_inference(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                 const at::Tensor& slopes, double epsilon,
                                 bool residual_post_layernorm, at::IntArrayRef tokens,
                                 const TensorAxis& axis,
                                 const std::function<at::Tensor(const at::Tensor&)>& attention);

}  // namespace tessera
