// SPDX-License-Identifier: MIT
#pragma once
// Causal attention in one pass over Q, K and V, which are read strided out of one buffer, as are
// their gradients written. Implemented by a cuDNN graph, or absent
// (attention_no_cudnn.cpp).
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops::cuda {

struct AttentionShape {
  int64_t batch, sequence, heads, key_heads, d;
  at::ScalarType type;  // bf16 or fp16
  float scale;
  bool by_head = false;  // as SelfAttention's
  bool alibi = false;    // with slopes
  int64_t window = 0;    // as SelfAttention's, shorter than the sequence; not with the others
  bool packed = false;   // rows inside the sequences: a query sees no key before its row's first
  auto operator<=>(const AttentionShape&) const = default;
};

// False when this build or the library has no forward and backward for the shape. The first call
// for a shape takes seconds: plans are built and kept.
bool has_attention_graph(const AttentionShape& shape);

// qkv, dqkv [batch, sequence, (heads + 2 key_heads) d]; output, gradient [batch, sequence, heads,
// d]; slopes fp32 [heads]; log_sum_exp fp32 [batch, heads, sequence], of scores with the bias slope
// * key.
struct AttentionPointers {
  const void *qkv, *slopes;          // slopes null without ALiBi
  const void* first_keys = nullptr;  // int32 [batch, sequence], of packed rows
  void *output, *log_sum_exp;
  const void* gradient = nullptr;  // backward only
  void* dqkv = nullptr;
};
void run_attention_forward(const AttentionShape& shape, const AttentionPointers& pointers);
void run_attention_backward(const AttentionShape& shape, const AttentionPointers& pointers);

}  // namespace tessera::ops::cuda
