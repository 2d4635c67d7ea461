// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Configuration of decoder-only language models: every built-in family is such a configuration of
/// one set of blocks.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/ops/attention.h"

namespace tessera {

/// Kind of head.
enum class ModelHead { kCausal, kClassification };

/// Configuration of a decoder: every layer is norm, attention, residual, norm, feed-forward,
/// residual.
struct DecoderConfig {
  /// "model_type" of config.json: bloom, glm4_moe, gpt2, gpt_oss, llama, mistral, mixtral, olmoe,
  /// qwen2, qwen2_moe, qwen3, qwen3_moe. It determines only the names of keys and parameters.
  std::string model_type;
  std::string name;  ///< the model's name in messages and records

  int64_t vocabulary = 1024;  ///< rows of the embedding
  int64_t hidden = 64;        ///< width of the residual stream
  int64_t layers = 2;         ///< decoder layers
  int64_t heads = 4;          ///< query heads
  /// Key and value heads, each for heads / key_heads query heads; 0: as many as heads.
  int64_t key_heads = 0;
  int64_t head_dim = 0;             ///< 0: hidden / heads
  int64_t inner = 0;                ///< columns of the feed-forward layer; 0: 4 * hidden
  bool tied_head = true;            ///< whether the head's weight is the embedding's
  double initializer_range = 0.02;  ///< standard deviation of initial weights

  /// The kind of norm: kLayer subtracts the mean, kRms does not.
  enum class Norm { kLayer, kRms };
  Norm norm = Norm::kLayer;     ///< the norm of every layer and of the head
  double epsilon = 1e-5;        ///< added to the variance
  bool embedding_norm = false;  ///< a norm after the embedding, as in BLOOM
  bool query_key_norm = false;  ///< an RMS norm of every query and key head
  /// query_key_norm is one norm of all query heads together, and one of all key heads (OLMoE).
  bool query_key_norm_of_all_heads = false;
  bool residual_post_layernorm = false;  ///< residual branches start at the norms' outputs

  /// Position encoding.
  enum class Positions { kAlibi, kLearned, kRotary };
  Positions positions = Positions::kRotary;  ///< position encoding
  int64_t max_positions = 0;                 ///< longest sequence with positions; 0: any
  /// Sequence length of the original training, with rotary positions; not a limit.
  int64_t trained_positions = 2048;
  ops::RotaryOptions rotary;  ///< options for kRotary
  /// Share of a head's columns, from the first one, that kRotary rotates; the rest pass.
  double rotary_share = 1;

  /// Whether these linear layers have a bias.
  bool query_key_value_bias = false, dense_bias = false, mlp_bias = false;
  std::vector<int64_t> windows;  ///< attention window by layer: see ops::SelfAttention; empty: none
  /// Every head has a trained score more, of a value 0 (gpt-oss).
  bool attention_sinks = false;
  bool scale_attention = true;            ///< scale scores by 1 / sqrt(head dimension)
  bool scale_attention_by_layer = false;  ///< also scale by 1 / (layer + 1)
  bool gated = false;                     ///< SwiGLU, else GELU
  bool exact_gelu = false;  ///< GELU with the error function; otherwise its tanh approximation

  /// Experts of a layer (gated; see clamped_experts for biases), of which the router chooses
  /// experts_per_token for every token. No token is dropped. 0: every feed-forward layer is dense.
  int64_t experts = 0;
  int64_t experts_per_token = 0;    ///< at most `experts`
  int64_t expert_inner = 0;         ///< columns of an expert's feed-forward layer
  bool normalised_routing = false;  ///< a token's expert weights are divided by their sum
  /// Scores of experts are sigmoids of the logits (DeepSeek-AI et al. 2024), else their softmax. A
  /// bias by expert is added for the choice alone: a buffer that stays as the checkpoint has it, 0
  /// without one.
  bool sigmoid_routing = false;
  double routing_scale = 1;  ///< multiplies a token's expert weights, after their division
  /// Columns of a dense feed-forward layer beside the experts, which every token takes; 0: none.
  int64_t shared_inner = 0;
  bool shared_gate = false;  ///< its output is multiplied by a sigmoid of a linear map to 1 column
  /// gpt-oss' experts: biases of router and experts, gates up to 7, gate * sigmoid(1.702 gate) *
  /// (up + 1) with up in [-7, 7]. Tensors are stored [experts, in, out], gates in even columns.
  bool clamped_experts = false;
  std::vector<int64_t> dense_layers;  ///< layers with one dense feed-forward layer; increasing
  /// What a causal model's training loss adds of its routers, with these factors: the balance loss
  /// as transformers computes it, and the mean square of the logits' log-sum-exp (z-loss).
  double router_aux_loss_coef = 0, router_z_loss_coef = 0;
  /// The causal head counts each expert's tokens (Block's counters), also without these losses.
  bool count_experts = false;

  /// Dropout probabilities in training; draws depend on BlockContext::seed and the block.
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;

  /// A preset for trials without published weights: accepts any tokenizer's vocabulary.
  bool trial = false;
  /// Special tokens of config.json; nothing if it names none.
  std::optional<int64_t> bos_token, eos_token, pad_token;
  std::vector<std::string> labels;   ///< names of the classes; empty if the file has none
  std::vector<std::string> notices;  ///< messages for a program's user, to be shown once

  /// Number of key and value heads.
  int64_t key_head_count() const { return key_heads > 0 ? key_heads : heads; }
  /// Columns of one head.
  int64_t head_size() const { return head_dim > 0 ? head_dim : hidden / heads; }
  /// Columns of one head that kRotary rotates, as transformers rounds them.
  int64_t rotary_columns() const {
    return static_cast<int64_t>(static_cast<double>(head_size()) * rotary_share);
  }
  /// Columns of the feed-forward layer.
  int64_t inner_size() const { return inner > 0 ? inner : 4 * hidden; }
  /// Whether the layer's feed-forward part is a mixture of experts.
  bool has_experts(size_t layer) const;
  /// Whether a causal model's blocks pass on what its routers did, for losses or counts.
  bool watches_routers() const {
    return experts > 0 && (count_experts || router_aux_loss_coef > 0 || router_z_loss_coef > 0);
  }
  /// The attention window of a layer, in keys; 0: none.
  int64_t window_of(size_t layer) const { return windows.empty() ? 0 : windows.at(layer); }

  /// Throws Error(kInvalidArgument) for inconsistent sizes; everything built from it relies on
  /// this.
  void validate() const;
};

}  // namespace tessera
