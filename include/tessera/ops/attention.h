// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Causal attention with grouped queries and rotary positions, as GPT-2 and Llama use them.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/core/micro_batch.h"

namespace tessera::ops {

/// Rotary positions (Su et al. 2021) and the ways to longer contexts.
struct RotaryOptions {
  /// How frequencies are changed for longer contexts.
  enum class Kind {
    kDefault,
    kLinear,  ///< every frequency is divided by factor (Chen et al. 2023)
    /// Low frequencies are divided by factor, high ones stay, those between are blended.
    kLlama3,  ///< by turns over the original context (Grattafiori et al. 2024)
    kYarn,    ///< by the place among the frequencies (Peng et al. 2023)
  };
  double theta = 10'000;              ///< base of the frequencies
  Kind kind = Kind::kDefault;         ///< how they are changed
  double factor = 1;                  ///< linear, llama3, yarn: by how much the context grows
  int64_t original_positions = 8192;  ///< llama3, yarn
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3, in turns
  double beta_fast = 32, beta_slow = 1;                        ///< yarn, in turns
  bool whole_bounds = true;                                    ///< yarn: rounded outwards
  double magnitude = 1;  ///< yarn: cosines and sines are multiplied by it
  bool operator==(const RotaryOptions&) const = default;  ///< compares all members
};

/// theta^(-2i/d) for i < d/2, changed as the kind says: fp32 [d/2] on the CPU.
at::Tensor rotary_frequencies(int64_t head_dim, const RotaryOptions& options);

/// Cosines and sines of position * frequency, times magnitude.
struct RotaryTables {
  at::Tensor cos, sin;  ///< fp32 [positions, d/2]
};
/// Tables in fp32 for places 0 .. positions-1, on the device of the frequencies [d/2].
RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions, double magnitude = 1);

/// Turns the pairs (x[i], x[i + d/2]) of every head by their position's angles, in fp32 and rounded
/// once. x [batch, sequence, heads, d]; positions int64 [batch, sequence], all of which the tables
/// have; undefined: a token's position is its place in the sequence.
at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables,
                  const at::Tensor& positions = {});

/// Options of causal_attention().
struct CausalAttentionOptions {
  double scale = 1.0;    ///< multiplies the scores
  double dropout = 0.0;  ///< of the probabilities; 0 outside of training
  uint64_t seed = 0;  ///< what dropout draws from; on the CPU with the head's number in the model
  int64_t first_head = 0;  ///< that number for the first head given here
  int64_t window = 0;      ///< a query sees so many keys at most, up to its own; 0: all
};

/// softmax(scale q k^T) v over the keys up to each query, softmax in fp32.
///   q     [batch, sequence, heads, d]
///   k, v  [batch, sequence, key_heads, d]; query head i reads key head i / (heads / key_heads)
///   attention_mask  [batch, sequence] bool, false keys are never attended to; undefined: none. A
///                   query without any visible key gives 0.
///   packed          rows inside the sequences, each attended to alone; not with a mask
/// On CUDA without a mask nothing of size sequence^2 is formed, nor is the mask's on the CPU
/// without dropout. With a window pieces of the sequence attend to the keys in reach alone.
/// -> [batch, sequence, heads * d]
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& attention_mask, const CausalAttentionOptions& options,
                            const PackedRows& packed = {});

}  // namespace tessera::ops
