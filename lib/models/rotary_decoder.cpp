// SPDX-License-Identifier: MIT
#include "lib/models/rotary_decoder.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/models/config_json.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = ops::RotaryOptions::Kind;

// 1 + 0.1 ln(factor), as in YaRN, and the keys that modify it.
double yarn_magnitude(const Json& scaling, double factor) {
  if (const auto given = scaling.find("attention_factor")) return given->as_double();
  const auto growth = [&](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  const double numerator = scaling.get("mscale", 0.0),
               denominator = scaling.get("mscale_all_dim", 0.0);
  return numerator != 0 && denominator != 0 ? growth(numerator) / growth(denominator) : growth(1);
}

// "rope_theta" and "rope_scaling" of older files, "rope_parameters" of newer ones.
void read_rope(const Json& json, DecoderConfig& config) {
  ops::RotaryOptions& rotary = config.rotary;
  const auto parameters = json.find("rope_parameters");
  const auto scaling = parameters ? parameters : json.find("rope_scaling");
  const bool may_be_partial = config.rotary_share != 1;
  const auto partial = [&](const Json& where) {
    const auto share = where.find("partial_rotary_factor");
    if (!share) return;
    if (!may_be_partial && share->as_double() != 1) {
      share->fail("only heads that are rotated as a whole are supported");
    }
    config.rotary_share = share->as_double();
  };
  partial(json);
  rotary.theta = json.get("rope_theta", 10'000.0);
  if (!scaling) return;
  partial(*scaling);
  rotary.theta = scaling->get("rope_theta", rotary.theta);
  const auto named = scaling->find("rope_type");
  const auto type = named ? named : scaling->find("type");
  const std::string name = type ? type->as_string() : "default";
  if (name == "default") return;
  if (name != "linear" && name != "llama3" && name != "yarn") {
    type->fail("rotary scaling \"" + name +
               "\" is not supported; supported are default, linear, llama3, yarn");
  }
  const auto original = config_json::find_size(*scaling, {"original_max_position_embeddings"});
  rotary.original_positions = original.value_or(config.trained_positions);
  const auto factor = scaling->find("factor");
  rotary.factor =
      !factor && name == "yarn" && original
          ? static_cast<double>(config.trained_positions) / static_cast<double>(*original)
          : scaling->at("factor").as_double();
  if (name == "linear") {
    rotary.kind = Kind::kLinear;
    rotary.original_positions = ops::RotaryOptions{}.original_positions;
  } else if (name == "llama3") {
    rotary.kind = Kind::kLlama3;
    rotary.low_frequency_factor = scaling->at("low_freq_factor").as_double();
    rotary.high_frequency_factor = scaling->at("high_freq_factor").as_double();
  } else {
    rotary.kind = Kind::kYarn;
    rotary.beta_fast = scaling->get("beta_fast", 32.0);
    rotary.beta_slow = scaling->get("beta_slow", 1.0);
    rotary.whole_bounds = scaling->get("truncate", true);
    rotary.magnitude = yarn_magnitude(*scaling, rotary.factor);
  }
}

void write_rope(JsonWriter& out, const DecoderConfig& config) {
  const ops::RotaryOptions& rotary = config.rotary;
  const bool partial = config.rotary_share != 1;
  if (partial) out.field("partial_rotary_factor", config.rotary_share);  // of transformers 4
  out.key("rope_parameters").begin_object();
  if (partial) out.field("partial_rotary_factor", config.rotary_share);
  out.field("rope_theta", rotary.theta);
  switch (rotary.kind) {
    case Kind::kDefault:
      out.field("rope_type", "default");
      break;
    case Kind::kLinear:
      out.field("rope_type", "linear").field("factor", rotary.factor);
      break;
    case Kind::kLlama3:
      out.field("rope_type", "llama3").field("factor", rotary.factor);
      out.field("low_freq_factor", rotary.low_frequency_factor);
      out.field("high_freq_factor", rotary.high_frequency_factor);
      out.field("original_max_position_embeddings", rotary.original_positions);
      break;
    case Kind::kYarn:
      out.field("rope_type", "yarn").field("factor", rotary.factor);
      out.field("beta_fast", rotary.beta_fast).field("beta_slow", rotary.beta_slow);
      out.field("truncate", rotary.whole_bounds);
      out.field("attention_factor", rotary.magnitude);
      out.field("original_max_position_embeddings", rotary.original_positions);
      break;
  }
  out.end_object();
}

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

}  // namespace

DecoderFamily rotary_family(const std::string& model_type, const std::string& class_prefix) {
  DecoderFamily family{
      .model_type = model_type,
      .causal_class = class_prefix + "ForCausalLM",
      .classifier_class = class_prefix + "ForSequenceClassification",
      .layers = "layers.",
      .checkpoint_prefix = "model.",
      .table = "embed_tokens",
      .input_norm = "input_layernorm",
      .query_key_value = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
      .dense = "self_attn.o_proj",
      .query_norm = "self_attn.q_norm",
      .key_norm = "self_attn.k_norm",
      .attention_norm = "post_attention_layernorm",
      .up = {"mlp.gate_proj", "mlp.up_proj"},
      .down = "mlp.down_proj",
      .router = "mlp.gate",
      .experts = "mlp.experts",
      .final_norm = "norm",
      .lora_targets = {"q_proj", "v_proj"},
      .constant_pad = true};
  DecoderConfig& config = family.defaults;
  config.model_type = config.name = model_type;
  config.key_heads = 2, config.inner = 128;
  config.norm = DecoderConfig::Norm::kRms;
  config.gated = true;
  return family;
}

DecoderConfig sized(const DecoderFamily& family, const RotarySize& size) {
  DecoderConfig config = family.defaults;
  config.name = size.name;
  config.hidden = size.hidden, config.inner = size.inner, config.layers = size.layers;
  config.heads = size.heads, config.key_heads = size.key_heads, config.head_dim = size.head_dim;
  config.tied_head = size.tied;
  config.trial = size.vocabulary == 0;
  if (config.trial) {
    config.vocabulary = 1024;
    config.trained_positions = 2048;
    config.bos_token = 1, config.eos_token = 2, config.pad_token = 3;
  } else {
    config.vocabulary = size.vocabulary;
  }
  return config;
}

void read_rotary_decoder(const Json& json, DecoderConfig& config) {
  config.hidden = config_json::size(json, {"hidden_size"});
  config.inner = config_json::size(json, {"intermediate_size"});
  config.layers = config_json::size(json, {"num_hidden_layers"});
  config.heads = config_json::size(json, {"num_attention_heads"});
  config.key_heads = config_json::find_size(json, {"num_key_value_heads"}).value_or(config.heads);
  config.head_dim = config_json::find_size(json, {"head_dim"}).value_or(config.head_dim);
  if (config.head_dim == 0 && config.hidden % config.heads != 0) {
    json.at("num_attention_heads").fail(concat("does not divide hidden_size ", config.hidden));
  }
  config.trained_positions =
      config_json::find_size(json, {"max_position_embeddings"}).value_or(config.trained_positions);
  if (const auto activation = json.find("hidden_act")) {
    const std::string name = activation->as_string();
    if (name != "silu" && name != "swish") {
      activation->fail("only \"silu\" is supported, found \"" + name + "\"");
    }
  }
  config.epsilon = json.get("rms_norm_eps", 1e-6);
  read_rope(json, config);
  config.attention_dropout = config_json::probability(json, "attention_dropout", 0.0);
  config.tied_head = json.get("tie_word_embeddings", false);
}

void write_rotary_decoder(JsonWriter& out, const DecoderConfig& config) {
  out.field("hidden_size", config.hidden);
  out.field("intermediate_size", config.inner_size());
  out.field("num_hidden_layers", config.layers);
  out.field("num_attention_heads", config.heads);
  out.field("num_key_value_heads", config.key_head_count());
  out.field("head_dim", config.head_size());
  out.field("hidden_act", "silu");
  out.field("max_position_embeddings", config.trained_positions);
  out.field("rms_norm_eps", config.epsilon);
  write_rope(out, config);
  out.field("attention_dropout", config.attention_dropout);
}

void read_experts(const Json& json, DecoderConfig& config, double usual_factor) {
  config.experts =
      config_json::size(json, {"num_experts", "num_local_experts", "n_routed_experts"});
  config.experts_per_token = config_json::size(json, {"num_experts_per_tok"});
  // transformers adds the balance loss where this is set.
  if (json.get("output_router_logits", false)) {
    config.router_aux_loss_coef = json.get("router_aux_loss_coef", usual_factor);
  }
}

void write_experts(JsonWriter& out, const DecoderConfig& config, const char* count) {
  out.field(count, config.experts);
  out.field("num_experts_per_tok", config.experts_per_token);
  const double factor = config.router_aux_loss_coef;
  out.field("output_router_logits", factor > 0);
  if (factor > 0) out.field("router_aux_loss_coef", factor);
}

void read_qwen_experts(const Json& json, DecoderConfig& config) {
  read_experts(json, config);
  config.expert_inner = config_json::size(json, {"moe_intermediate_size"});
  config.normalised_routing = json.get("norm_topk_prob", false);
  const int64_t step = config_json::find_size(json, {"decoder_sparse_step"}).value_or(1);
  std::set<int64_t> dense;
  if (const auto listed = json.find("mlp_only_layers")) {
    // transformers ignores numbers of no layer.
    for (const Json& layer : listed->items()) {
      if (layer.as_int64() < config.layers) dense.insert(layer.as_int64(0, config.layers));
    }
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if ((layer + 1) % step != 0) dense.insert(layer);
  }
  config.dense_layers.assign(dense.begin(), dense.end());
}

void read_windows_by_layer(const Json& json, DecoderConfig& config) {
  constexpr int64_t kUsualWindow = 4096, kUsualFullLayers = 28;  // transformers' defaults
  const auto types = json.find("layer_types");
  const bool any = json.get("use_sliding_window", false);
  const int64_t window =
      any ? config_json::find_size(json, {"sliding_window"}).value_or(kUsualWindow) : 0;
  const int64_t full = json.get("max_window_layers", kUsualFullLayers);
  std::vector<int64_t> windows;
  if (types) {
    for (size_t i = 0; i < types->size(); ++i) {
      const Json type = types->at(i);
      const std::string name = type.as_string();
      if (name != kSliding && name != kFull) {
        type.fail(concat("layers are \"", kFull, "\" or \"", kSliding, "\", found \"", name, "\""));
      }
      // transformers treats a layer without a window size as full attention.
      windows.push_back(name == kSliding ? window : 0);
    }
    if (static_cast<int64_t>(windows.size()) != config.layers) {
      types->fail(concat("names ", windows.size(), " layers of ", config.layers));
    }
  } else {
    for (int64_t i = 0; i < config.layers; ++i) windows.push_back(i >= full ? window : 0);
  }
  const bool used = std::ranges::any_of(windows, [](int64_t w) { return w > 0; });
  config.windows = used ? windows : std::vector<int64_t>{};
}

void write_windows_by_layer(JsonWriter& out, const DecoderConfig& config) {
  if (config.windows.empty()) {
    out.field("use_sliding_window", false);
    return;
  }
  out.field("use_sliding_window", true);
  out.field("sliding_window", *std::ranges::max_element(config.windows));
  out.key("layer_types").begin_array();
  for (const int64_t window : config.windows) out.value(window > 0 ? kSliding : kFull);
  out.end_array();
}

}  // namespace tessera
