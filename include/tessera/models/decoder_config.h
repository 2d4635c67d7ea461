// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a decoder-only language model is made of: every family of models that is built in is such a
/// description, and one set of blocks computes them all.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/ops/attention.h"

namespace tessera {

/// What stands behind the body.
enum class ModelHead { kCausal, kClassification };

/// Every layer is norm, attention, residual, norm, feed-forward, residual.
struct DecoderConfig {
  /// "model_type" of config.json: bloom, gpt2, llama, mistral, qwen2, qwen3. Names of keys and
  /// parameters follow from it, nothing else.
  std::string model_type;
  std::string name;  ///< of the model, for messages and records

  int64_t vocabulary = 1024;  ///< rows of the embedding
  int64_t hidden = 64;        ///< width of the residual stream
  int64_t layers = 2;         ///< decoder layers
  int64_t heads = 4;          ///< query heads
  int64_t key_heads = 0;      ///< each serves heads / key_heads query heads; 0: as many as heads
  int64_t head_dim = 0;       ///< 0: hidden / heads
  int64_t inner = 0;          ///< columns of the feed-forward layer; 0: 4 * hidden
  bool tied_head = true;      ///< the head's weight is the embedding's
  double initializer_range = 0.02;  ///< drawn weights are normal(0, it)

  /// The kind of norm: kLayer subtracts the mean, kRms does not.
  enum class Norm { kLayer, kRms };
  Norm norm = Norm::kLayer;              ///< the norm of every layer and of the head
  double epsilon = 1e-5;                 ///< added to the variance
  bool embedding_norm = false;           ///< a norm behind the embedding, as BLOOM has
  bool query_key_norm = false;           ///< an RMS norm of every query and key head
  bool residual_post_layernorm = false;  ///< the residual branches start at the norms' outputs

  /// How attention learns positions.
  enum class Positions { kAlibi, kLearned, kRotary };
  Positions positions = Positions::kRotary;  ///< how attention learns positions
  int64_t max_positions = 0;                 ///< longest sequence that has positions; 0: any
  int64_t trained_positions = 2048;  ///< of the original training, of rotary positions: no limit
  ops::RotaryOptions rotary;         ///< options of kRotary

  /// Which linear layers have a bias.
  bool query_key_value_bias = false, dense_bias = false, mlp_bias = false;
  std::vector<int64_t> windows;  ///< by layer: see ops::SelfAttention; empty: none anywhere
  bool scale_attention = true;   ///< by 1 / sqrt(head dimension)
  bool scale_attention_by_layer = false;  ///< and by 1 / (layer + 1)
  bool gated = false;                     ///< SwiGLU, else GELU
  bool exact_gelu = false;  ///< GELU by the error function, else by its approximation with tanh

  /// In training only; what is dropped depends on BlockContext::seed and the block.
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;

  /// A preset made for trials, without published weights: any tokenizer's vocabulary will do.
  bool trial = false;
  /// Special tokens of config.json; nothing if it names none.
  std::optional<int64_t> bos_token, eos_token, pad_token;
  std::vector<std::string> labels;   ///< names of the classes; empty when the file has none
  std::vector<std::string> notices;  ///< what a program should tell its user once

  /// The number of key and value heads.
  int64_t key_head_count() const { return key_heads > 0 ? key_heads : heads; }
  /// The columns of one head.
  int64_t head_size() const { return head_dim > 0 ? head_dim : hidden / heads; }
  /// The columns of the feed-forward layer.
  int64_t inner_size() const { return inner > 0 ? inner : 4 * hidden; }
  /// The attention window of a layer, in keys; 0: none.
  int64_t window_of(size_t layer) const { return windows.empty() ? 0 : windows.at(layer); }

  /// Throws Error(kInvalidArgument) when the sizes do not make a model; all that is made of it
  /// relies on that.
  void validate() const;
};

}  // namespace tessera
