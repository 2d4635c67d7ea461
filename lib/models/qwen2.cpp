// SPDX-License-Identifier: MIT
// Qwen2 and Qwen2.5 (Yang et al. 2024): Llama's layers with biases for queries, keys and values.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"

namespace tessera {
namespace {

void read_qwen2(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  read_windows_by_layer(json, config);
}

void write_qwen2(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  write_windows_by_layer(out, config);
}

DecoderConfig qwen2(const DecoderFamily& family, const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.theta = 1e6;
  if (!config.trial) {
    config.trained_positions = 32'768;
    config.bos_token = config.eos_token = 151'643;
  }
  return config;
}

}  // namespace

const DecoderFamily& qwen2_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("qwen2", "Qwen2");
    made.read = read_qwen2, made.write = write_qwen2;
    made.defaults.query_key_value_bias = true;
    made.defaults.epsilon = 1e-6;
    constexpr int64_t kVocabulary = 151'936, kWideVocabulary = 152'064;
    const auto larger = [&](const RotarySize& size) {
      DecoderConfig config = qwen2(made, size);
      config.epsilon = 1e-5;
      return config;
    };
    made.presets = {qwen2(made, {"qwen2.5-0.5b", 896, 4864, 24, 14, 2, true, kVocabulary}),
                    qwen2(made, {"qwen2.5-1.5b", 1536, 8960, 28, 12, 2, true, kVocabulary}),
                    qwen2(made, {"qwen2.5-3b", 2048, 11'008, 36, 16, 2, true, kVocabulary}),
                    qwen2(made, {"qwen2.5-7b", 3584, 18'944, 28, 28, 4, false, kWideVocabulary}),
                    larger({"qwen2.5-14b", 5120, 13'824, 48, 40, 8, false, kWideVocabulary}),
                    larger({"qwen2.5-32b", 5120, 27'648, 64, 40, 8, false, kWideVocabulary}),
                    qwen2(made, {"qwen2-tiny", 64, 160, 2, 4, 2, true}),
                    qwen2(made, {"qwen2-mini", 96, 256, 4, 6, 2, false})};
    return made;
  }();
  return family;
}

}  // namespace tessera
