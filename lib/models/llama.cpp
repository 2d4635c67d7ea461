// SPDX-License-Identifier: MIT
// Llama 1 to 3.x (Touvron et al. 2023, Grattafiori et al. 2024).
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"

namespace tessera {
namespace {

void read_llama(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  if (const auto window = json.find("sliding_window")) {
    window->fail("attention of Llama in a sliding window is not supported");
  }
  config.query_key_value_bias = config.dense_bias = json.get("attention_bias", false);
  config.mlp_bias = json.get("mlp_bias", false);
}

void write_llama(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("attention_bias", config.query_key_value_bias);
  out.field("mlp_bias", config.mlp_bias);
}

DecoderConfig llama3(const DecoderFamily& family, double factor, const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.kind = ops::RotaryOptions::Kind::kLlama3;
  config.rotary.factor = factor;
  if (!config.trial) {
    config.trained_positions = 131'072;
    config.bos_token = 128'000, config.eos_token = 128'001;
  }
  return config;
}

}  // namespace

const DecoderFamily& llama_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("llama", "Llama");
    made.read = read_llama, made.write = write_llama;
    made.defaults.rotary.theta = 500'000;
    made.defaults.bos_token = 1, made.defaults.eos_token = 2;
    constexpr int64_t kVocabulary = 128'256;
    made.presets = {llama3(made, 32, {"llama-3.2-1b", 2048, 8192, 16, 32, 8, true, kVocabulary}),
                    llama3(made, 32, {"llama-3.2-3b", 3072, 8192, 28, 24, 8, true, kVocabulary}),
                    llama3(made, 8, {"llama-3.1-8b", 4096, 14'336, 32, 32, 8, false, kVocabulary}),
                    llama3(made, 8, {"llama-tiny", 64, 160, 2, 4, 2, true}),
                    llama3(made, 8, {"llama-mini", 96, 256, 4, 6, 2, false})};
    return made;
  }();
  return family;
}

}  // namespace tessera
