// SPDX-License-Identifier: MIT
// GPT-2 (Radford et al. 2019): learned positions, weights stored [in, out], dropout by default.
#include "lib/models/config_json.h"
#include "lib/models/decoder_family.h"

namespace tessera {
namespace {

DecoderConfig gpt2_defaults() {
  DecoderConfig config;
  config.model_type = config.name = "gpt2";
  config.vocabulary = 50'257;
  config.positions = DecoderConfig::Positions::kLearned;
  config.max_positions = 1024;
  config.query_key_value_bias = config.dense_bias = config.mlp_bias = true;
  config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0.1;
  config.bos_token = config.eos_token = 50'256;
  return config;
}

std::vector<DecoderConfig> gpt2_presets() {
  struct Size {
    const char* name;
    int64_t hidden, layers, heads;
    bool trial = false;
  };
  std::vector<DecoderConfig> presets;
  for (const auto& [name, hidden, layers, heads, trial] :
       {Size{"gpt2", 768, 12, 12}, Size{"gpt2-medium", 1024, 24, 16},
        Size{"gpt2-large", 1280, 36, 20}, Size{"gpt2-xl", 1600, 48, 25},
        Size{"gpt2-tiny", 64, 2, 4, true}, Size{"gpt2-mini", 96, 4, 6, true}}) {
    DecoderConfig config = gpt2_defaults();
    config.name = name;
    config.hidden = hidden, config.layers = layers, config.heads = heads;
    config.trial = trial;
    if (trial) {
      config.vocabulary = 1024;
      config.bos_token = 1, config.eos_token = 2, config.pad_token = 3;
      config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0;
    }
    presets.push_back(config);
  }
  return presets;
}

void read_gpt2(const Json& json, DecoderConfig& config) {
  config.hidden = config_json::size(json, {"n_embd", "hidden_size"});
  config.layers = config_json::size(json, {"n_layer", "num_hidden_layers"});
  config.heads = config_json::size(json, {"n_head", "num_attention_heads"});
  config.max_positions = config_json::size(json, {"n_positions", "max_position_embeddings"});
  config.inner = config_json::find_size(json, {"n_inner"}).value_or(0);
  if (const auto activation = json.find("activation_function")) {
    const std::string name = activation->as_string();
    config.exact_gelu = name == "gelu" || name == "gelu_python";
    if (!config.exact_gelu && name != "gelu_new" && name != "gelu_pytorch_tanh" &&
        name != "gelu_fast") {
      activation->fail("only \"gelu_new\" and \"gelu\" are supported, found \"" + name + "\"");
    }
  }
  config.epsilon = json.get("layer_norm_epsilon", 1e-5);
  config.embedding_dropout = config_json::probability(json, "embd_pdrop", 0.1);
  config.attention_dropout = config_json::probability(json, "attn_pdrop", 0.1);
  config.residual_dropout = config_json::probability(json, "resid_pdrop", 0.1);
  config.scale_attention = json.get("scale_attn_weights", true);
  config.scale_attention_by_layer = json.get("scale_attn_by_inverse_layer_idx", false);
  config_json::require(json, "add_cross_attention", false);
  config.tied_head = json.get("tie_word_embeddings", true);
  const DecoderConfig usual = gpt2_defaults();  // transformers omits default values
  if (!json.contains("bos_token_id")) config.bos_token = usual.bos_token;
  if (!json.contains("eos_token_id")) config.eos_token = usual.eos_token;
}

void write_gpt2(JsonWriter& out, const DecoderConfig& config) {
  out.field("n_positions", config.max_positions);
  out.field("n_embd", config.hidden);
  out.field("n_layer", config.layers);
  out.field("n_head", config.heads);
  out.field("n_inner", config.inner_size());
  out.field("activation_function", config.exact_gelu ? "gelu" : "gelu_new");
  out.field("embd_pdrop", config.embedding_dropout);
  out.field("attn_pdrop", config.attention_dropout);
  out.field("resid_pdrop", config.residual_dropout);
  out.field("layer_norm_epsilon", config.epsilon);
  out.field("scale_attn_weights", config.scale_attention);
  out.field("scale_attn_by_inverse_layer_idx", config.scale_attention_by_layer);
}

}  // namespace

const DecoderFamily& gpt2_family() {
  static const DecoderFamily family{.model_type = "gpt2",
                                    .causal_class = "GPT2LMHeadModel",
                                    .classifier_class = "GPT2ForSequenceClassification",
                                    .layers = "h.",
                                    .checkpoint_prefix = "transformer.",
                                    .table = "wte",
                                    .position_table = "wpe",
                                    .input_norm = "ln_1",
                                    .query_key_value = {"attn.c_attn"},
                                    .dense = "attn.c_proj",
                                    .attention_norm = "ln_2",
                                    .up = {"mlp.c_fc"},
                                    .down = "mlp.c_proj",
                                    .final_norm = "ln_f",
                                    .lora_targets = {"c_attn"},
                                    .in_out = true,
                                    .narrow_ends = true,
                                    .defaults = gpt2_defaults(),
                                    .read = read_gpt2,
                                    .write = write_gpt2,
                                    .presets = gpt2_presets()};
  return family;
}

}  // namespace tessera
