#pragma once
// Causal attention with grouped queries and rotary positions, as GPT-2 and Llama use them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/core/micro_batch.h"

namespace tessera::ops {

// Llama 3's way to longer contexts (Grattafiori et al. 2024): low frequencies are divided by
// `factor`, high ones stay, those between are blended.
struct Llama3Scaling {
  double factor = 8, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_positions = 8192;
};

// theta^(-2i/d) for i < d/2 (Su et al. 2021), divided by linear_factor, or as scaling says: fp32
// [d/2] on the CPU.
at::Tensor rotary_frequencies(int64_t head_dim, double theta, double linear_factor = 1,
                              const std::optional<Llama3Scaling>& scaling = {});

// Cosines and sines of position * frequency.
struct RotaryTables {
  at::Tensor cos, sin;  // fp32 [positions, d/2]
};
RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions);

// Turns the pairs (x[i], x[i + d/2]) of every head by their position's angles, in fp32 and rounded
// once. x [batch, sequence, heads, d]; positions int64 [batch, sequence], all of which the tables
// have; undefined: a token's position is its place in the sequence.
at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables,
                  const at::Tensor& positions = {});

struct CausalAttentionOptions {
  double scale = 1.0;
  double dropout = 0.0;  // of the probabilities; 0 outside of training
  uint64_t seed = 0;     // what dropout draws from; on the CPU with the head's number in the model
  int64_t first_head = 0;  // that number for the first head given here
};

// softmax(scale q k^T) v over the keys up to each query, softmax in fp32.
//   q     [batch, sequence, heads, d]
//   k, v  [batch, sequence, key_heads, d]; query head i reads key head i / (heads / key_heads)
//   attention_mask  [batch, sequence] bool, false keys are never attended to; undefined: none. A
//                   query without any visible key gives 0.
//   packed          rows inside the sequences, each attended to alone; not with a mask
// On CUDA without a mask nothing of size sequence^2 is formed, nor is the mask's on the CPU without
// dropout.
// -> [batch, sequence, heads * d]
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& attention_mask, const CausalAttentionOptions& options,
                            const PackedRows& packed = {});

}  // namespace tessera::ops
