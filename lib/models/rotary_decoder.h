// SPDX-License-Identifier: MIT
#pragma once
// Common parts of Llama, Mistral and Qwen: RMS norms, rotary embedding, grouped queries and a gated
// feed-forward layer, under the same names.
#include "lib/models/decoder_family.h"

namespace tessera {

// The family's names and classes, without presets.
DecoderFamily rotary_family(const std::string& model_type, const std::string& class_prefix);

// A published size, or a trial size (vocabulary 0).
struct RotarySize {
  const char* name;
  int64_t hidden, inner, layers, heads, key_heads;
  bool tied;
  int64_t vocabulary = 0;
  int64_t head_dim = 0;  // 0: hidden / heads
};
DecoderConfig sized(const DecoderFamily& family, const RotarySize& size);

// Sizes, norms, dropout and rotary embedding. Each family handles its biases, windows and head
// norms. Heads are rotated in part only where the family's default is that.
void read_rotary_decoder(const Json& json, DecoderConfig& config);
void write_rotary_decoder(JsonWriter& out, const DecoderConfig& config);

// The number of experts and those of a token, and with "output_router_logits" the factor of the
// balance loss; usual_factor: transformers' default.
void read_experts(const Json& json, DecoderConfig& config, double usual_factor = 0.001);
void write_experts(JsonWriter& out, const DecoderConfig& config, const char* count);

// read_experts() of Qwen's files: "moe_intermediate_size", "norm_topk_prob", and dense layers by
// "decoder_sparse_step" and "mlp_only_layers".
void read_qwen_experts(const Json& json, DecoderConfig& config);

// Qwen's "use_sliding_window", "sliding_window", "max_window_layers" and "layer_types".
void read_windows_by_layer(const Json& json, DecoderConfig& config);
void write_windows_by_layer(JsonWriter& out, const DecoderConfig& config);

}  // namespace tessera
