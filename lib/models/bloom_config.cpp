#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lib/models/config_json.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/bloom.h"

namespace tessera {
namespace {

struct BloomPreset {
  std::string_view name;
  int64_t hidden, layers, heads, vocabulary;
};
constexpr std::array kBloomPresets = {
    BloomPreset{"bloom-560m", 1024, 24, 16, 250'880},
    BloomPreset{"bloom-1b7", 2048, 24, 16, 250'880},
    BloomPreset{"bloom-3b", 2560, 30, 32, 250'880},
    BloomPreset{"bloom-7b1", 4096, 30, 32, 250'880},
    BloomPreset{"bloom-tiny", 64, 2, 4, 1024},
    BloomPreset{"bloom-mini", 96, 4, 6, 1024},
    BloomPreset{"bloom-small", 256, 4, 8, 4096},
};

// Tied parameters once.
template <typename Number>
Number count_parameters(const BloomConfig& c, ModelHead head, Number num_labels) {
  const auto vocabulary = static_cast<Number>(c.vocabulary), hidden = static_cast<Number>(c.hidden);
  const Number body = vocabulary * hidden +
                      static_cast<Number>(c.layers) * (12 * hidden * hidden + 13 * hidden) +
                      4 * hidden;
  if (head == ModelHead::kClassification) return body + num_labels * hidden;
  return c.tied_head ? body : body + vocabulary * hidden;
}

}  // namespace

BloomConfig::BloomConfig() {
  name = "bloom";
  vocabulary = 250'880;
  heads = 8;
  bos_token = 1, eos_token = 2, pad_token = 3;
}

BloomConfig BloomConfig::preset(const std::string& name) {
  const std::string known = name == "bloom-7b" ? "bloom-7b1" : name;
  std::string names;
  for (const auto& preset : kBloomPresets) {
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
    if (preset.name != known) continue;
    BloomConfig config;
    config.name = known;
    config.hidden = preset.hidden;
    config.layers = preset.layers;
    config.heads = preset.heads;
    config.vocabulary = preset.vocabulary;
    config.trial = preset.vocabulary < 250'000;
    if (known != name)
      config.notices = {concat("\"", name, "\" is no published name: using ", known)};
    return config;
  }
  fail(ErrorCode::kInvalidArgument, "unknown model configuration \"", name, "\"; known are ",
       names);
}

std::vector<std::string> BloomConfig::preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : kBloomPresets) names.emplace_back(preset.name);
  return names;
}

BloomConfig BloomConfig::from_file(const std::string& path) {
  return from_json(Json::parse_file(path));
}

BloomConfig BloomConfig::from_json(const Json& json) {
  BloomConfig config;
  config_json::read_common(json, "bloom", config);
  config.vocabulary = config_json::size(json, {"vocab_size"});
  config.hidden = config_json::size(json, {"hidden_size", "n_embed"});
  config.layers = config_json::size(json, {"n_layer", "num_hidden_layers"});
  config.heads = config_json::size(json, {"n_head", "num_attention_heads"});
  if (const auto inner = json.find("n_inner"); inner && inner->as_int64() != 4 * config.hidden) {
    inner->fail(concat("BLOOM's inner size is 4 * hidden_size = ", 4 * config.hidden));
  }
  config.layer_norm_epsilon = json.get("layer_norm_epsilon", 1e-5);
  config.residual_post_layernorm = json.get("apply_residual_connection_post_layernorm", false);
  config.tied_head = json.get("tie_word_embeddings", true);
  config.bos_token = config_json::token(json, "bos_token_id");
  config.eos_token = config_json::token(json, "eos_token_id");
  config.pad_token = config_json::token(json, "pad_token_id");
  config.hidden_dropout = config_json::probability(json, "hidden_dropout", 0.0);
  config.attention_dropout = config_json::probability(json, "attention_dropout", 0.0);
  config_json::validate(json, config);
  config_json::notice_dropout(config, std::max(config.hidden_dropout, config.attention_dropout));
  return config;
}

void BloomConfig::validate() const {
  validate_common();
  check(hidden % heads == 0, ErrorCode::kInvalidArgument, "model ", name, ": hidden size ", hidden,
        " is not a multiple of ", heads, " heads");
  check(layer_norm_epsilon > 0 && layer_norm_epsilon < 1, ErrorCode::kInvalidArgument, "model ",
        name, ": layer_norm_epsilon must be between 0 and 1, not ", layer_norm_epsilon);
  for (const double dropout : {hidden_dropout, attention_dropout}) {
    check(dropout >= 0 && dropout < 1, ErrorCode::kInvalidArgument, "model ", name,
          ": dropout must be a probability below 1, not ", dropout);
  }
  const auto classes = static_cast<double>(labels.size());
  config_json::check_parameter_count(*this, count_parameters<double>(*this, ModelHead::kCausal, 0) +
                                                classes * static_cast<double>(hidden));
}

int64_t BloomConfig::parameter_count(ModelHead head, int64_t num_labels) const {
  return count_parameters<int64_t>(*this, head, num_labels);
}

std::string BloomConfig::to_json(ModelHead head, at::ScalarType dtype) const {
  JsonWriter out(2);
  config_json::begin(out, "bloom", "BloomForCausalLM", "BloomForSequenceClassification", head);
  out.field("vocab_size", vocabulary);
  out.field("hidden_size", hidden);
  out.field("n_layer", layers);
  out.field("n_head", heads);
  out.field("layer_norm_epsilon", layer_norm_epsilon);
  out.field("apply_residual_connection_post_layernorm", residual_post_layernorm);
  out.field("hidden_dropout", hidden_dropout).field("attention_dropout", attention_dropout);
  return config_json::end(out, *this, head, dtype);
}

}  // namespace tessera
