// SPDX-License-Identifier: MIT
// Qwen3 (Yang et al. 2025): Llama's layers with query and key head norms and an independent head
// size.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"

namespace tessera {
namespace {

constexpr int64_t kQwen3Head = 128;  // transformers' default for a missing key

void read_qwen3(const Json& json, DecoderConfig& config) {
  config.head_dim = kQwen3Head;
  read_rotary_decoder(json, config);
  config.query_key_value_bias = config.dense_bias = json.get("attention_bias", false);
  read_windows_by_layer(json, config);
}

void write_qwen3(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("attention_bias", config.query_key_value_bias);
  write_windows_by_layer(out, config);
}

DecoderConfig qwen3(const DecoderFamily& family, const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.theta = 1e6;
  if (!config.trial) {
    config.trained_positions = 40'960;
    config.bos_token = 151'643, config.eos_token = 151'645;
  }
  return config;
}

}  // namespace

const DecoderFamily& qwen3_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("qwen3", "Qwen3");
    made.read = read_qwen3, made.write = write_qwen3;
    made.defaults.query_key_norm = true;
    made.defaults.epsilon = 1e-6;
    constexpr int64_t kVocabulary = 151'936;
    made.presets = {
        qwen3(made, {"qwen3-0.6b", 1024, 3072, 28, 16, 8, true, kVocabulary, kQwen3Head}),
        qwen3(made, {"qwen3-1.7b", 2048, 6144, 28, 16, 8, true, kVocabulary, kQwen3Head}),
        qwen3(made, {"qwen3-4b", 2560, 9728, 36, 32, 8, true, kVocabulary, kQwen3Head}),
        qwen3(made, {"qwen3-8b", 4096, 12'288, 36, 32, 8, false, kVocabulary, kQwen3Head}),
        qwen3(made, {"qwen3-14b", 5120, 17'408, 40, 40, 8, false, kVocabulary, kQwen3Head}),
        qwen3(made, {"qwen3-tiny", 64, 160, 2, 4, 2, true, 0, 24}),
        qwen3(made, {"qwen3-mini", 96, 256, 4, 6, 2, false, 0, 24})};
    return made;
  }();
  return family;
}

}  // namespace tessera
