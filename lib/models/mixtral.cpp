// SPDX-License-Identifier: MIT
// Mixtral (Jiang et al. 2024): Mistral's layers with experts, whose weights are divided by their
// sum.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void read_mixtral(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  if (!json.contains("rms_norm_eps")) config.epsilon = 1e-5;  // transformers' default
  if (const auto window = config_json::find_size(json, {"sliding_window"})) {
    config.windows.assign(static_cast<size_t>(config.layers), *window);
  }
  read_experts(json, config);
  config.expert_inner = config.inner_size();
  if (const auto noise = json.find("router_jitter_noise"); noise && noise->as_double() != 0) {
    noise->fail("noise of the router's inputs is not supported");
  }
}

void write_mixtral(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.key("sliding_window");
  config.windows.empty() ? out.null() : out.value(config.windows.front());
  check(config.expert_inner == config.inner_size(), ErrorCode::kInvalidArgument, "model ",
        config.name, ": its files have one size of all feed-forward layers, not ", config.inner,
        " and ", config.expert_inner);
  write_experts(out, config, "num_local_experts");
}

DecoderConfig mixtral(const DecoderFamily& family, int64_t experts, const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.theta = 1e6;
  config.experts = experts, config.expert_inner = config.inner;
  if (!config.trial) config.trained_positions = 32'768;
  return config;
}

}  // namespace

const DecoderFamily& mixtral_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("mixtral", "Mixtral");
    made.read = read_mixtral, made.write = write_mixtral;
    made.router = "block_sparse_moe.gate", made.experts = "block_sparse_moe.experts";
    DecoderConfig& defaults = made.defaults;
    defaults.bos_token = 1, defaults.eos_token = 2;
    defaults.experts = 4, defaults.experts_per_token = 2,
    defaults.inner = defaults.expert_inner = 32;
    defaults.normalised_routing = true;
    made.presets = {mixtral(made, 8, {"mixtral-8x7b-v0.1", 4096, 14'336, 32, 32, 8, false, 32'000}),
                    mixtral(made, 4, {"mixtral-tiny", 64, 96, 2, 4, 2, false}),
                    mixtral(made, 8, {"mixtral-mini", 96, 128, 4, 6, 2, false})};
    return made;
  }();
  return family;
}

}  // namespace tessera
