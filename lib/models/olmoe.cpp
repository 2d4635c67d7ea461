// SPDX-License-Identifier: MIT
// OLMoE (Muennighoff et al. 2024): experts whose weights are probabilities as they are, and norms
// of all queries and all keys of a token.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void read_olmoe(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  if (!json.contains("rms_norm_eps")) config.epsilon = 1e-5;  // transformers' default
  if (const auto clip = json.find("clip_qkv")) {
    clip->fail("clipped queries, keys and values are not supported");
  }
  config.query_key_value_bias = config.dense_bias = json.get("attention_bias", false);
  read_experts(json, config, /*usual_factor=*/0.01);
  config.expert_inner = config.inner_size();
  config.normalised_routing = json.get("norm_topk_prob", false);
}

void write_olmoe(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("attention_bias", config.query_key_value_bias);
  check(config.expert_inner == config.inner_size(), ErrorCode::kInvalidArgument, "model ",
        config.name, ": its files have one size of all feed-forward layers, not ", config.inner,
        " and ", config.expert_inner);
  write_experts(out, config, "num_experts");
  out.field("norm_topk_prob", config.normalised_routing);
}

DecoderConfig olmoe(const DecoderFamily& family, int64_t experts, int64_t used,
                    const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.experts = experts, config.experts_per_token = used, config.expert_inner = config.inner;
  if (!config.trial) {
    config.trained_positions = 4096;
    config.eos_token = 50'279, config.pad_token = 1;
  }
  return config;
}

}  // namespace

const DecoderFamily& olmoe_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("olmoe", "Olmoe");
    made.read = read_olmoe, made.write = write_olmoe;
    DecoderConfig& defaults = made.defaults;
    defaults.query_key_norm = defaults.query_key_norm_of_all_heads = true;
    defaults.experts = 8, defaults.experts_per_token = 2,
    defaults.inner = defaults.expert_inner = 32;
    made.presets = {olmoe(made, 64, 8, {"olmoe-1b-7b", 2048, 1024, 16, 16, 16, false, 50'304}),
                    olmoe(made, 8, 2, {"olmoe-tiny", 64, 48, 2, 4, 2, false}),
                    olmoe(made, 16, 4, {"olmoe-mini", 96, 64, 4, 6, 6, false})};
    return made;
  }();
  return family;
}

}  // namespace tessera
