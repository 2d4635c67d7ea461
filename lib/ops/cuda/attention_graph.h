// SPDX-License-Identifier: MIT
#pragma once
// Causal attention in one pass over Q, K and V, read strided from one buffer; gradients are written
// strided too. A cuDNN graph, or unavailable (attention_no_cudnn.cpp).
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops::cuda {

struct AttentionShape {
  int64_t batch, sequence, heads, key_heads, d;
  at::ScalarType type;  // bf16 or fp16
  float scale;
  bool by_head = false;  // as in SelfAttention
  bool alibi = false;    // with ALiBi slopes
  int64_t window = 0;  // as in SelfAttention, shorter than the sequence; excludes alibi and packed
  // Packed rows inside the sequences: a query sees no key before its row's first.
  bool packed = false;
  auto operator<=>(const AttentionShape&) const = default;
};

// False when the build or cuDNN lacks forward and backward for the shape. A shape's first call
// takes seconds, to build and keep its graphs.
bool has_attention_graph(const AttentionShape& shape);

// qkv, dqkv [batch, sequence, (heads + 2 key_heads) d]; output, gradient [batch, sequence, heads,
// d]; slopes fp32 [heads]; log_sum_exp fp32 [batch, heads, sequence], of scores with the bias slope
// * key.
struct AttentionPointers {
  const void *qkv, *slopes;          // slopes: null without ALiBi
  const void* first_keys = nullptr;  // int32 [batch, sequence]; packed rows only
  void *output, *log_sum_exp;
  const void* gradient = nullptr;  // backward only
  void* dqkv = nullptr;
};
void run_attention_forward(const AttentionShape& shape, const AttentionPointers& pointers);
void run_attention_backward(const AttentionShape& shape, const AttentionPointers& pointers);

}  // namespace tessera::ops::cuda
