// SPDX-License-Identifier: MIT
// gpt-oss (OpenAI 2025): attention with sinks and biases, windows in every second layer, experts
// with biases and a clamped activation. The weights of the chosen experts are a softmax of their
// logits, which equals probabilities of all divided by the sum of the chosen ones.
#include <algorithm>
#include <cmath>
#include <string>

#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"
#include "lib/ops/clamped_swiglu.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kGptOssWindow = 128, kGptOssHead = 64;  // transformers' defaults
constexpr const char *kWindowed = "sliding_attention", *kWhole = "full_attention";

// transformers' default.
ops::RotaryOptions usual_rotary() {
  constexpr double kFactor = 32;
  return {.theta = 150'000,
          .kind = ops::RotaryOptions::Kind::kYarn,
          .factor = kFactor,
          .original_positions = 4096,
          .whole_bounds = false,
          .magnitude = 0.1 * std::log(kFactor) + 1.0};
}

void read_layer_types(const Json& json, DecoderConfig& config) {
  const int64_t window = config_json::find_size(json, {"sliding_window"}).value_or(kGptOssWindow);
  config.windows.clear();
  const auto types = json.find("layer_types");
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!types) {
      config.windows.push_back(i % 2 == 0 ? window : 0);
      continue;
    }
    if (static_cast<int64_t>(types->size()) != config.layers) {
      types->fail(concat("names ", types->size(), " layers of ", config.layers));
    }
    const Json type = types->at(static_cast<size_t>(i));
    const std::string name = type.as_string();
    if (name != kWindowed && name != kWhole) {
      type.fail(concat("layers are \"", kWhole, "\" or \"", kWindowed, "\", found \"", name, "\""));
    }
    config.windows.push_back(name == kWindowed ? window : 0);
  }
  if (std::ranges::all_of(config.windows, [](int64_t w) { return w == 0; })) config.windows.clear();
}

void require_number(const Json& json, const char* name, double expected) {
  const auto found = json.find(name);
  if (found && found->as_double() != expected) {
    found->fail(concat("only ", expected, " is supported"));
  }
}

void read_gpt_oss(const Json& json, DecoderConfig& config) {
  config.head_dim = kGptOssHead;
  read_rotary_decoder(json, config);
  if (!json.contains("rms_norm_eps")) config.epsilon = 1e-5;  // transformers' default
  const bool has_rope = json.contains("rope_parameters") || json.contains("rope_scaling");
  if (!has_rope) {
    const double theta = json.get("rope_theta", usual_rotary().theta);
    config.rotary = usual_rotary();
    config.rotary.theta = theta;
  }
  config.query_key_value_bias = config.dense_bias = json.get("attention_bias", true);
  read_layer_types(json, config);
  read_experts(json, config);
  config.expert_inner = config.inner_size();
  require_number(json, "swiglu_limit", ops::kSwigluLimit);
  require_number(json, "swiglu_alpha", ops::kSwigluSlope);
}

void write_gpt_oss(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("attention_bias", config.query_key_value_bias);
  out.field("sliding_window",
            config.windows.empty() ? kGptOssWindow : *std::ranges::max_element(config.windows));
  out.key("layer_types").begin_array();
  for (int64_t i = 0; i < config.layers; ++i) {
    out.value(config.window_of(static_cast<size_t>(i)) > 0 ? kWindowed : kWhole);
  }
  out.end_array();
  check(config.expert_inner == config.inner_size(), ErrorCode::kInvalidArgument, "model ",
        config.name, ": its files have one size of all feed-forward layers, not ", config.inner,
        " and ", config.expert_inner);
  write_experts(out, config, "num_local_experts");
  out.field("swiglu_limit", ops::kSwigluLimit);
}

DecoderConfig gpt_oss(const DecoderFamily& family, int64_t experts, int64_t used,
                      const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.experts = experts, config.experts_per_token = used, config.expert_inner = config.inner;
  for (int64_t i = 0; i < config.layers; ++i) {
    config.windows.push_back(i % 2 == 0 ? kGptOssWindow : 0);
  }
  if (!config.trial) {
    config.trained_positions = 131'072;
    config.eos_token = 200'002, config.pad_token = 199'999;
  }
  return config;
}

}  // namespace

const DecoderFamily& gpt_oss_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("gpt_oss", "GptOss");
    made.read = read_gpt_oss, made.write = write_gpt_oss;
    made.router = "mlp.router", made.sinks = "self_attn.sinks";
    DecoderConfig& defaults = made.defaults;
    defaults.query_key_value_bias = defaults.dense_bias = true;
    defaults.attention_sinks = defaults.clamped_experts = true;
    defaults.epsilon = 1e-5;
    defaults.rotary = usual_rotary();
    defaults.experts = 4, defaults.experts_per_token = 2,
    defaults.inner = defaults.expert_inner = 32;
    defaults.normalised_routing = true;
    constexpr int64_t kVocabulary = 201'088;
    made.presets = {
        gpt_oss(made, 32, 4,
                {"gpt-oss-20b", 2880, 2880, 24, 64, 8, false, kVocabulary, kGptOssHead}),
        gpt_oss(made, 128, 4,
                {"gpt-oss-120b", 2880, 2880, 36, 64, 8, false, kVocabulary, kGptOssHead}),
        gpt_oss(made, 4, 2, {"gpt_oss-tiny", 64, 96, 2, 4, 2, false, 0, 24}),
        gpt_oss(made, 8, 2, {"gpt_oss-mini", 96, 128, 4, 6, 2, false, 0, 24})};
    return made;
  }();
  return family;
}

}  // namespace tessera
