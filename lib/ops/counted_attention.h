// SPDX-License-Identifier: MIT
#pragma once
// Attention on meta tensors, part of counted.h's operations, and helpers of both files.
#include <ATen/ATen.h>

#include <vector>

#include "tessera/ops/kernels.h"

namespace tessera::ops::counted {

inline bool is_16_bit(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

inline at::Tensor empty_fp32(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// Accumulator of the queries' gradient in LibTorch's CUDA flash backward: whole tiles of each
// sequence, or one more tile for each packed row.
at::Tensor flash_sums(int64_t batch, int64_t sequence, size_t packed_rows, int64_t heads,
                      int64_t head_size, const at::Tensor& like);
// Workspace of cuDNN's backward for so many queries and keys of all query heads: the queries'
// gradient in fp32 and one number each. With shared key heads, also the key and value gradients of
// each query head.
std::vector<at::Tensor> cudnn_workspace(int64_t queries, int64_t keys, int64_t d, bool grouped,
                                        const at::Tensor& like);

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed);
at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed);
bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed);
at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const CachedRows& rows, const SelfAttention& attention);

}  // namespace tessera::ops::counted
