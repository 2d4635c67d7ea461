#include <array>
#include <string_view>

#include "lib/models/config_json.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/llama.h"

namespace tessera {
namespace {

struct LlamaPreset {
  std::string_view name;
  int64_t hidden, inner, layers, heads, key_heads;
  bool tied;
  double rope_factor;
  bool trial = false;
};
constexpr std::array kLlamaPresets = {
    LlamaPreset{"llama-3.2-1b", 2048, 8192, 16, 32, 8, true, 32},
    LlamaPreset{"llama-3.2-3b", 3072, 8192, 28, 24, 8, true, 32},
    LlamaPreset{"llama-3.1-8b", 4096, 14'336, 32, 32, 8, false, 8},
    LlamaPreset{"llama-tiny", 64, 160, 2, 4, 2, true, 8, true},
    LlamaPreset{"llama-mini", 96, 256, 4, 6, 2, false, 8, true},
};

// Rotary embedding: "rope_theta" and "rope_scaling" of older files, "rope_parameters" of newer
// ones.
void read_rope(const Json& json, LlamaConfig& config) {
  const auto parameters = json.find("rope_parameters");
  const auto scaling = parameters ? parameters : json.find("rope_scaling");
  const auto partial = [](const Json& where) {
    if (const auto share = where.find("partial_rotary_factor"); share && share->as_double() != 1) {
      share->fail("only heads that are rotated as a whole are supported");
    }
  };
  partial(json);
  config.rope_theta = json.get("rope_theta", 10'000.0);
  if (!scaling) return;
  partial(*scaling);
  config.rope_theta = scaling->get("rope_theta", config.rope_theta);
  const auto named = scaling->find("rope_type");
  const auto type = named ? named : scaling->find("type");
  const std::string name = type ? type->as_string() : "default";
  if (name == "linear") {
    config.rope_linear_factor = scaling->at("factor").as_double();
  } else if (name == "llama3") {
    config.rope_llama3 = {
        .factor = scaling->at("factor").as_double(),
        .low_frequency_factor = scaling->at("low_freq_factor").as_double(),
        .high_frequency_factor = scaling->at("high_freq_factor").as_double(),
        .original_positions = config_json::find_size(*scaling, {"original_max_position_embeddings"})
                                  .value_or(config.positions)};
  } else if (name != "default") {
    type->fail("rotary scaling \"" + name +
               "\" is not supported; supported are default, linear, llama3");
  }
}

void write_rope(JsonWriter& out, const LlamaConfig& config) {
  out.key("rope_parameters").begin_object();
  out.field("rope_theta", config.rope_theta);
  if (config.rope_llama3) {
    out.field("rope_type", "llama3");
    out.field("factor", config.rope_llama3->factor);
    out.field("low_freq_factor", config.rope_llama3->low_frequency_factor);
    out.field("high_freq_factor", config.rope_llama3->high_frequency_factor);
    out.field("original_max_position_embeddings", config.rope_llama3->original_positions);
  } else if (config.rope_linear_factor != 1) {
    out.field("rope_type", "linear").field("factor", config.rope_linear_factor);
  } else {
    out.field("rope_type", "default");
  }
  out.end_object();
}

// Tied parameters once.
template <typename Number>
Number count_parameters(const LlamaConfig& c, ModelHead head, Number num_labels) {
  const auto vocabulary = static_cast<Number>(c.vocabulary), hidden = static_cast<Number>(c.hidden),
             inner = static_cast<Number>(c.inner), head_dim = static_cast<Number>(c.head_dim);
  const Number width = static_cast<Number>(c.heads) * head_dim,
               key_width = static_cast<Number>(c.key_heads) * head_dim;
  Number layer = 2 * hidden * (width + key_width) + 3 * hidden * inner + 2 * hidden;
  if (c.attention_bias) layer += width + 2 * key_width + hidden;
  if (c.mlp_bias) layer += 2 * inner + hidden;
  const Number body = vocabulary * hidden + static_cast<Number>(c.layers) * layer + hidden;
  if (head == ModelHead::kClassification) return body + num_labels * hidden;
  return c.tied_head ? body : body + vocabulary * hidden;
}

}  // namespace

LlamaConfig::LlamaConfig() {
  name = "llama";
  bos_token = 1, eos_token = 2;
}

LlamaConfig LlamaConfig::preset(const std::string& name) {
  std::string names;
  for (const auto& preset : kLlamaPresets) {
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
    if (preset.name != name) continue;
    LlamaConfig config;
    config.name = name;
    config.hidden = preset.hidden;
    config.inner = preset.inner;
    config.layers = preset.layers;
    config.heads = preset.heads;
    config.key_heads = preset.key_heads;
    config.head_dim = preset.hidden / preset.heads;
    config.tied_head = preset.tied;
    config.trial = preset.trial;
    config.rope_llama3 = {.factor = preset.rope_factor};
    if (preset.trial) {
      config.pad_token = 3;
    } else {
      config.vocabulary = 128'256;
      config.positions = 131'072;
      config.bos_token = 128'000, config.eos_token = 128'001;
    }
    return config;
  }
  fail(ErrorCode::kInvalidArgument, "unknown model configuration \"", name, "\"; known are ",
       names);
}

std::vector<std::string> LlamaConfig::preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : kLlamaPresets) names.emplace_back(preset.name);
  return names;
}

LlamaConfig LlamaConfig::from_json(const Json& json) {
  LlamaConfig config;
  config_json::read_common(json, "llama", config);
  config.vocabulary = config_json::size(json, {"vocab_size"});
  config.hidden = config_json::size(json, {"hidden_size"});
  config.inner = config_json::size(json, {"intermediate_size"});
  config.layers = config_json::size(json, {"num_hidden_layers"});
  config.heads = config_json::size(json, {"num_attention_heads"});
  config.key_heads = config_json::find_size(json, {"num_key_value_heads"}).value_or(config.heads);
  const auto head_dim = config_json::find_size(json, {"head_dim"});
  if (!head_dim && config.hidden % config.heads != 0) {
    json.at("num_attention_heads").fail(concat("does not divide hidden_size ", config.hidden));
  }
  config.head_dim = head_dim.value_or(config.hidden / config.heads);
  config.positions = config_json::find_size(json, {"max_position_embeddings"}).value_or(2048);
  if (const auto activation = json.find("hidden_act")) {
    const std::string name = activation->as_string();
    if (name != "silu" && name != "swish") {
      activation->fail("only \"silu\" is supported, found \"" + name + "\"");
    }
  }
  if (const auto window = json.find("sliding_window")) {
    window->fail("attention in a sliding window is not supported");
  }
  config.rms_norm_epsilon = json.get("rms_norm_eps", 1e-6);
  read_rope(json, config);
  config.attention_bias = json.get("attention_bias", false);
  config.mlp_bias = json.get("mlp_bias", false);
  config.attention_dropout = config_json::probability(json, "attention_dropout", 0.0);
  config.tied_head = json.get("tie_word_embeddings", false);
  config.bos_token = config_json::token(json, "bos_token_id");
  config.eos_token = config_json::token(json, "eos_token_id");
  config.pad_token = config_json::token(json, "pad_token_id");
  config_json::validate(json, config);
  config_json::notice_dropout(config, config.attention_dropout);
  return config;
}

void LlamaConfig::validate() const {
  validate_common();
  const auto require = [&](bool good, const auto&... parts) {
    check(good, ErrorCode::kInvalidArgument, "model ", name, ": ", parts...);
  };
  require(key_heads >= 1 && heads % key_heads == 0, "the number of heads ", heads,
          " is not a multiple of ", key_heads, " key and value heads");
  require(head_dim >= 2 && head_dim % 2 == 0, "the head dimension must be even, not ", head_dim);
  require(inner >= 1 && positions >= 1, "the inner size and the number of positions must be ",
          "positive, found ", inner, " and ", positions);
  require(rms_norm_epsilon > 0 && rms_norm_epsilon < 1,
          "rms_norm_eps must be between 0 and 1, not ", rms_norm_epsilon);
  require(rope_theta > 0 && rope_linear_factor > 0,
          "rope_theta and factor must be positive, found ", rope_theta, " and ",
          rope_linear_factor);
  require(attention_dropout >= 0 && attention_dropout < 1,
          "dropout must be a probability below 1, not ", attention_dropout);
  const auto classes = static_cast<double>(labels.size());
  config_json::check_parameter_count(*this, count_parameters<double>(*this, ModelHead::kCausal, 0) +
                                                classes * static_cast<double>(hidden));
  if (!rope_llama3) return;
  require(rope_llama3->factor > 0 && rope_llama3->low_frequency_factor > 0 &&
              rope_llama3->high_frequency_factor > rope_llama3->low_frequency_factor,
          "llama3 rotary scaling needs a positive factor and low_freq_factor below ",
          "high_freq_factor, found ", rope_llama3->factor, ", ", rope_llama3->low_frequency_factor,
          " and ", rope_llama3->high_frequency_factor);
}

int64_t LlamaConfig::parameter_count(ModelHead head, int64_t num_labels) const {
  return count_parameters<int64_t>(*this, head, num_labels);
}

std::string LlamaConfig::to_json(ModelHead head, at::ScalarType dtype) const {
  JsonWriter out(2);
  config_json::begin(out, "llama", "LlamaForCausalLM", "LlamaForSequenceClassification", head);
  out.field("vocab_size", vocabulary);
  out.field("hidden_size", hidden);
  out.field("intermediate_size", inner);
  out.field("num_hidden_layers", layers);
  out.field("num_attention_heads", heads);
  out.field("num_key_value_heads", key_heads);
  out.field("head_dim", head_dim);
  out.field("hidden_act", "silu");
  out.field("max_position_embeddings", positions);
  out.field("rms_norm_eps", rms_norm_epsilon);
  write_rope(out, *this);
  out.field("attention_bias", attention_bias);
  out.field("mlp_bias", mlp_bias);
  out.field("attention_dropout", attention_dropout);
  return config_json::end(out, *this, head, dtype);
}

}  // namespace tessera
