// SPDX-License-Identifier: MIT
// Qwen3's mixtures of experts (Yang et al. 2025): Qwen3's attention, and experts in all layers or
// some.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"

namespace tessera {
namespace {

constexpr int64_t kQwen3MoeHead = 128;  // of the published models

void read_qwen3_moe(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  config.query_key_value_bias = config.dense_bias = json.get("attention_bias", false);
  if (json.get("use_sliding_window", false)) {  // of all layers
    constexpr int64_t kUsualWindow = 4096;      // transformers' default
    config.windows.assign(static_cast<size_t>(config.layers),
                          config_json::find_size(json, {"sliding_window"}).value_or(kUsualWindow));
  }
  read_qwen_experts(json, config);
}

void write_qwen3_moe(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("attention_bias", config.query_key_value_bias);
  out.field("use_sliding_window", !config.windows.empty());
  if (!config.windows.empty()) out.field("sliding_window", config.windows.front());
  write_experts(out, config, "num_experts");
  out.field("moe_intermediate_size", config.expert_inner);
  out.field("norm_topk_prob", config.normalised_routing);
  out.field("decoder_sparse_step", 1).field("mlp_only_layers", config.dense_layers);
}

DecoderConfig qwen3_moe(const DecoderFamily& family, int64_t experts, int64_t used, int64_t inner,
                        const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.theta = 1e6;
  config.experts = experts, config.experts_per_token = used, config.expert_inner = inner;
  if (!config.trial) {
    config.trained_positions = 40'960;
    config.bos_token = 151'643, config.eos_token = 151'645;
  }
  return config;
}

}  // namespace

const DecoderFamily& qwen3_moe_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("qwen3_moe", "Qwen3Moe");
    made.read = read_qwen3_moe, made.write = write_qwen3_moe;
    DecoderConfig& defaults = made.defaults;
    defaults.query_key_norm = true;
    defaults.epsilon = 1e-6;
    defaults.experts = 8, defaults.experts_per_token = 2, defaults.expert_inner = 32;
    defaults.normalised_routing = true;
    constexpr int64_t kVocabulary = 151'936;
    made.presets = {
        qwen3_moe(made, 128, 8, 768,
                  {"qwen3-30b-a3b", 2048, 6144, 48, 32, 4, false, kVocabulary, kQwen3MoeHead}),
        qwen3_moe(made, 8, 2, 48, {"qwen3_moe-tiny", 64, 160, 2, 4, 2, false, 0, 24}),
        qwen3_moe(made, 16, 4, 64, {"qwen3_moe-mini", 96, 256, 4, 6, 2, false, 0, 24})};
    return made;
  }();
  return family;
}

}  // namespace tessera
