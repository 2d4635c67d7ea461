// SPDX-License-Identifier: MIT
// Mistral (Jiang et al. 2023): Llama's layers with an attention window in all layers or none.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"

namespace tessera {
namespace {

constexpr int64_t kMistralWindow = 4096;  // transformers' default for a missing key

void set_window(DecoderConfig& config, int64_t window) {
  config.windows.assign(static_cast<size_t>(window > 0 ? config.layers : 0), window);
}

void read_mistral(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  const bool given = json.contains("sliding_window");  // null: no window
  set_window(config,
             config_json::find_size(json, {"sliding_window"}).value_or(given ? 0 : kMistralWindow));
  if (const auto types = json.find("layer_types")) {
    types->fail("windows of single layers are Ministral's, which is not supported");
  }
}

void write_mistral(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.key("sliding_window");
  config.windows.empty() ? out.null() : out.value(config.windows.front());
}

DecoderConfig mistral(const DecoderFamily& family, int64_t window, double theta,
                      const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  set_window(config, window);
  config.rotary.theta = theta;
  if (!config.trial) config.trained_positions = 32'768;
  return config;
}

}  // namespace

const DecoderFamily& mistral_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("mistral", "Mistral");
    made.read = read_mistral, made.write = write_mistral;
    made.defaults.bos_token = 1, made.defaults.eos_token = 2;
    made.presets = {
        mistral(made, 4096, 1e4, {"mistral-7b-v0.1", 4096, 14'336, 32, 32, 8, false, 32'000}),
        mistral(made, 0, 1e6, {"mistral-7b-v0.3", 4096, 14'336, 32, 32, 8, false, 32'768}),
        mistral(made, 48, 1e4, {"mistral-tiny", 64, 160, 2, 4, 2, false}),
        mistral(made, 48, 1e4, {"mistral-mini", 96, 256, 4, 6, 2, false})};
    return made;
  }();
  return family;
}

}  // namespace tessera
