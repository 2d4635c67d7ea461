// SPDX-License-Identifier: MIT
// BLOOM (Scao et al. 2022): ALiBi, a norm after the embedding, biases everywhere.
#include "lib/models/config_json.h"
#include "lib/models/decoder_family.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kBloomVocabulary = 250'880;

DecoderConfig bloom_defaults() {
  DecoderConfig config;
  config.model_type = config.name = "bloom";
  config.vocabulary = kBloomVocabulary;
  config.heads = 8;
  config.embedding_norm = true;
  config.positions = DecoderConfig::Positions::kAlibi;
  config.query_key_value_bias = config.dense_bias = config.mlp_bias = true;
  config.bos_token = 1, config.eos_token = 2, config.pad_token = 3;
  return config;
}

std::vector<DecoderConfig> bloom_presets() {
  struct Size {
    const char* name;
    int64_t hidden, layers, heads, vocabulary;
  };
  std::vector<DecoderConfig> presets;
  for (const auto& [name, hidden, layers, heads, vocabulary] :
       {Size{"bloom-560m", 1024, 24, 16, kBloomVocabulary},
        Size{"bloom-1b7", 2048, 24, 16, kBloomVocabulary},
        Size{"bloom-3b", 2560, 30, 32, kBloomVocabulary},
        Size{"bloom-7b1", 4096, 30, 32, kBloomVocabulary}, Size{"bloom-tiny", 64, 2, 4, 1024},
        Size{"bloom-mini", 96, 4, 6, 1024}, Size{"bloom-small", 256, 4, 8, 4096}}) {
    DecoderConfig config = bloom_defaults();
    config.name = name;
    config.hidden = hidden, config.layers = layers, config.heads = heads;
    config.vocabulary = vocabulary;
    config.trial = vocabulary < kBloomVocabulary;
    presets.push_back(config);
  }
  return presets;
}

void read_bloom(const Json& json, DecoderConfig& config) {
  config.hidden = config_json::size(json, {"hidden_size", "n_embed"});
  config.layers = config_json::size(json, {"n_layer", "num_hidden_layers"});
  config.heads = config_json::size(json, {"n_head", "num_attention_heads"});
  if (const auto inner = json.find("n_inner"); inner && inner->as_int64() != 4 * config.hidden) {
    inner->fail(concat("BLOOM's inner size is 4 * hidden_size = ", 4 * config.hidden));
  }
  config.epsilon = json.get("layer_norm_epsilon", 1e-5);
  config.residual_post_layernorm = json.get("apply_residual_connection_post_layernorm", false);
  config.tied_head = json.get("tie_word_embeddings", true);
  config.residual_dropout = config_json::probability(json, "hidden_dropout", 0.0);
  config.attention_dropout = config_json::probability(json, "attention_dropout", 0.0);
}

void write_bloom(JsonWriter& out, const DecoderConfig& config) {
  out.field("hidden_size", config.hidden);
  out.field("n_layer", config.layers);
  out.field("n_head", config.heads);
  out.field("layer_norm_epsilon", config.epsilon);
  out.field("apply_residual_connection_post_layernorm", config.residual_post_layernorm);
  out.field("hidden_dropout", config.residual_dropout);
  out.field("attention_dropout", config.attention_dropout);
}

}  // namespace

const DecoderFamily& bloom_family() {
  static const DecoderFamily family{.model_type = "bloom",
                                    .causal_class = "BloomForCausalLM",
                                    .classifier_class = "BloomForSequenceClassification",
                                    .layers = "h.",
                                    .checkpoint_prefix = "transformer.",
                                    .table = "word_embeddings",
                                    .embedding_norm = "word_embeddings_layernorm",
                                    .input_norm = "input_layernorm",
                                    .query_key_value = {"self_attention.query_key_value"},
                                    .dense = "self_attention.dense",
                                    .attention_norm = "post_attention_layernorm",
                                    .up = {"mlp.dense_h_to_4h"},
                                    .down = "mlp.dense_4h_to_h",
                                    .final_norm = "ln_f",
                                    .lora_targets = {"query_key_value"},
                                    .by_head = true,
                                    .defaults = bloom_defaults(),
                                    .read = read_bloom,
                                    .write = write_bloom,
                                    .presets = bloom_presets()};
  return family;
}

}  // namespace tessera
