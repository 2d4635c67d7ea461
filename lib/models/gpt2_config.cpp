#include <algorithm>
#include <array>
#include <string_view>

#include "lib/models/config_json.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/gpt2.h"

namespace tessera {
namespace {

struct Gpt2Preset {
  std::string_view name;
  int64_t hidden, layers, heads;
  bool trial = false;
};
constexpr std::array kGpt2Presets = {
    Gpt2Preset{"gpt2", 768, 12, 12},         Gpt2Preset{"gpt2-medium", 1024, 24, 16},
    Gpt2Preset{"gpt2-large", 1280, 36, 20},  Gpt2Preset{"gpt2-xl", 1600, 48, 25},
    Gpt2Preset{"gpt2-tiny", 64, 2, 4, true}, Gpt2Preset{"gpt2-mini", 96, 4, 6, true},
};

void notice_dropout(Gpt2Config& config) {
  config_json::notice_dropout(config, std::max({config.embedding_dropout, config.attention_dropout,
                                                config.residual_dropout}));
}

// Tied parameters once.
template <typename Number>
Number count_parameters(const Gpt2Config& c, ModelHead head, Number num_labels) {
  const auto vocabulary = static_cast<Number>(c.vocabulary), hidden = static_cast<Number>(c.hidden),
             inner = static_cast<Number>(c.inner);
  const Number layer = 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner;
  const Number body = (vocabulary + static_cast<Number>(c.max_positions)) * hidden +
                      static_cast<Number>(c.layers) * layer + 2 * hidden;
  if (head == ModelHead::kClassification) return body + num_labels * hidden;
  return c.tied_head ? body : body + vocabulary * hidden;
}

}  // namespace

Gpt2Config::Gpt2Config() {
  name = "gpt2";
  max_positions = 1024;
  bos_token = eos_token = 50'256;
  vocabulary = 50'257;
}

Gpt2Config Gpt2Config::preset(const std::string& name) {
  std::string names;
  for (const auto& preset : kGpt2Presets) {
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
    if (preset.name != name) continue;
    Gpt2Config config;
    config.name = name;
    config.hidden = preset.hidden;
    config.layers = preset.layers;
    config.heads = preset.heads;
    config.inner = 4 * preset.hidden;
    config.trial = preset.trial;
    if (preset.trial) {
      config.vocabulary = 1024;
      config.bos_token = 1, config.eos_token = 2, config.pad_token = 3;
      config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0;
    }
    notice_dropout(config);
    return config;
  }
  fail(ErrorCode::kInvalidArgument, "unknown model configuration \"", name, "\"; known are ",
       names);
}

std::vector<std::string> Gpt2Config::preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : kGpt2Presets) names.emplace_back(preset.name);
  return names;
}

Gpt2Config Gpt2Config::from_json(const Json& json) {
  Gpt2Config config;
  config_json::read_common(json, "gpt2", config);
  config.vocabulary = config_json::size(json, {"vocab_size"});
  config.hidden = config_json::size(json, {"n_embd", "hidden_size"});
  config.layers = config_json::size(json, {"n_layer", "num_hidden_layers"});
  config.heads = config_json::size(json, {"n_head", "num_attention_heads"});
  config.max_positions = config_json::size(json, {"n_positions", "max_position_embeddings"});
  config.inner = config_json::find_size(json, {"n_inner"}).value_or(4 * config.hidden);
  if (const auto activation = json.find("activation_function")) {
    const std::string name = activation->as_string();
    if (name != "gelu_new" && name != "gelu_pytorch_tanh" && name != "gelu_fast") {
      activation->fail("only \"gelu_new\" is supported, found \"" + name + "\"");
    }
  }
  config.layer_norm_epsilon = json.get("layer_norm_epsilon", 1e-5);
  config.embedding_dropout = config_json::probability(json, "embd_pdrop", 0.1);
  config.attention_dropout = config_json::probability(json, "attn_pdrop", 0.1);
  config.residual_dropout = config_json::probability(json, "resid_pdrop", 0.1);
  config.scale_attention = json.get("scale_attn_weights", true);
  config.scale_attention_by_layer = json.get("scale_attn_by_inverse_layer_idx", false);
  config_json::require(json, "add_cross_attention", false);
  config.tied_head = json.get("tie_word_embeddings", true);
  const auto token = [&](const char* key, std::optional<int64_t> absent) {
    return json.contains(key) ? config_json::token(json, key) : absent;
  };
  config.bos_token = token("bos_token_id", config.bos_token);
  config.eos_token = token("eos_token_id", config.eos_token);
  config.pad_token = config_json::token(json, "pad_token_id");
  config_json::validate(json, config);
  notice_dropout(config);
  return config;
}

void Gpt2Config::validate() const {
  validate_common();
  check(hidden % heads == 0, ErrorCode::kInvalidArgument, "model ", name, ": hidden size ", hidden,
        " is not a multiple of ", heads, " heads");
  check(inner >= 1 && max_positions >= 1, ErrorCode::kInvalidArgument, "model ", name,
        ": the inner size and the number of positions must be positive, found ", inner, " and ",
        max_positions);
  check(layer_norm_epsilon > 0 && layer_norm_epsilon < 1, ErrorCode::kInvalidArgument, "model ",
        name, ": layer_norm_epsilon must be between 0 and 1, not ", layer_norm_epsilon);
  for (const double dropout : {embedding_dropout, attention_dropout, residual_dropout}) {
    check(dropout >= 0 && dropout < 1, ErrorCode::kInvalidArgument, "model ", name,
          ": dropout must be a probability below 1, not ", dropout);
  }
  const auto classes = static_cast<double>(labels.size());
  config_json::check_parameter_count(*this, count_parameters<double>(*this, ModelHead::kCausal, 0) +
                                                classes * static_cast<double>(hidden));
}

int64_t Gpt2Config::parameter_count(ModelHead head, int64_t num_labels) const {
  return count_parameters<int64_t>(*this, head, num_labels);
}

std::string Gpt2Config::to_json(ModelHead head, at::ScalarType dtype) const {
  JsonWriter out(2);
  config_json::begin(out, "gpt2", "GPT2LMHeadModel", "GPT2ForSequenceClassification", head);
  out.field("vocab_size", vocabulary);
  out.field("n_positions", max_positions);
  out.field("n_embd", hidden);
  out.field("n_layer", layers);
  out.field("n_head", heads);
  out.field("n_inner", inner);
  out.field("activation_function", "gelu_new");
  out.field("embd_pdrop", embedding_dropout);
  out.field("attn_pdrop", attention_dropout);
  out.field("resid_pdrop", residual_dropout);
  out.field("layer_norm_epsilon", layer_norm_epsilon);
  out.field("scale_attn_weights", scale_attention);
  out.field("scale_attn_by_inverse_layer_idx", scale_attention_by_layer);
  return config_json::end(out, *this, head, dtype);
}

}  // namespace tessera
