// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Causal attention with grouped queries and rotary positions, for GPT-2 and Llama.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/core/micro_batch.h"

namespace tessera::ops {

/// Rotary positions (Su et al. 2021), with extensions to longer contexts.
struct RotaryOptions {
  /// Change of the frequencies for longer contexts.
  enum class Kind {
    kDefault,
    kLinear,  ///< every frequency is divided by factor (Chen et al. 2023)
    /// Low frequencies are divided by factor, high ones stay, those in between are interpolated.
    kLlama3,  ///< by rotations over the original context (Grattafiori et al. 2024)
    kYarn,    ///< by index of the frequency (Peng et al. 2023)
  };
  double theta = 10'000;              ///< base of the frequencies
  Kind kind = Kind::kDefault;         ///< change of the frequencies
  double factor = 1;                  ///< linear, llama3, yarn: growth of the context
  int64_t original_positions = 8192;  ///< llama3, yarn: the original context
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3, in rotations
  double beta_fast = 32, beta_slow = 1;                        ///< yarn, in rotations
  bool whole_bounds = true;                                    ///< yarn: round the bounds outwards
  double magnitude = 1;                                   ///< yarn: factor of cosines and sines
  bool operator==(const RotaryOptions&) const = default;  ///< compares all members
};

/// theta^(-2i/d) for i < d/2, changed by options.kind: fp32 [d/2] on the CPU.
at::Tensor rotary_frequencies(int64_t head_dim, const RotaryOptions& options);

/// Cosines and sines of position * frequency, times magnitude.
struct RotaryTables {
  at::Tensor cos, sin;  ///< fp32 [positions, d/2]
};
/// Tables for positions 0 .. positions-1, fp32, on the device of the frequencies [d/2].
RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions, double magnitude = 1);

/// Rotates the pairs (x[i], x[i + r/2]) of every head, i < r/2, by their position's angles, in fp32
/// and rounded once. x [batch, sequence, heads, d]; tables [positions, r/2] for the first r <= d
/// columns, of which the rest pass; positions int64 [batch, sequence], within the tables;
/// undefined: a token's index in the sequence.
at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables,
                  const at::Tensor& positions = {});

/// Options of causal_attention().
struct CausalAttentionOptions {
  double scale = 1.0;    ///< multiplies the scores
  double dropout = 0.0;  ///< dropout of the probabilities; 0 outside training
  uint64_t seed = 0;  ///< seed of dropout; on the CPU together with the head's index in the model
  int64_t first_head = 0;  ///< index in the model of the first head given
  int64_t window = 0;      ///< most keys that a query sees, up to its own; 0: all
  double softcap = 0;      ///< scores s become softcap * tanh(s / softcap) (Gemma 2); 0: none
  at::Tensor sinks = {};   ///< [heads]: one more score each, of a value 0 (gpt-oss); may be trained
  at::Tensor slopes = {};  ///< ALiBi: [heads], added to scores times (key - query); not trained
};

/// Causal attention: softmax(scale q k^T) v over the keys up to each query, softmax in fp32.
///   q     [batch, sequence, heads, d]
///   k, v  [batch, sequence, key_heads, d]; query head i reads key head i / (heads / key_heads)
///   attention_mask  [batch, sequence] bool, false keys are never attended to; undefined: none. A
///                   query without any visible key gives 0.
///   packed          rows inside the sequences, each attended to alone; not with a mask
/// On CUDA without a mask no tensor of size sequence^2 is materialised, nor for the mask on the CPU
/// without dropout. With a window pieces of the sequence attend only to the keys in it. With a soft
/// cap, sinks or slopes the scores of each piece are materialised.
/// -> [batch, sequence, heads * d]
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& attention_mask, const CausalAttentionOptions& options,
                            const PackedRows& packed = {});

}  // namespace tessera::ops
