// SPDX-License-Identifier: MIT
// Qwen2's mixtures of experts (Qwen1.5-MoE, Yang et al. 2024): Qwen2's attention, and beside the
// experts of a layer a shared one with a gate.
#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"

namespace tessera {
namespace {

constexpr int64_t kUsualWindow = 4096, kUsualWindowed = 28;  // transformers' defaults

// "layer_types"; without, every second layer below "max_window_layers", from the first one.
void read_windows(const Json& json, DecoderConfig& config) {
  if (json.contains("layer_types")) return read_windows_by_layer(json, config);
  if (!json.get("use_sliding_window", false)) return;
  const int64_t window = config_json::find_size(json, {"sliding_window"}).value_or(kUsualWindow),
                most = json.get("max_window_layers", kUsualWindowed);
  for (int64_t i = 0; i < config.layers; ++i) {
    config.windows.push_back(i % 2 == 0 && i < most ? window : 0);
  }
}

void read_qwen2_moe(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  config.query_key_value_bias = json.get("qkv_bias", true);
  read_windows(json, config);
  read_qwen_experts(json, config);
  config.shared_inner = config_json::size(json, {"shared_expert_intermediate_size"});
}

void write_qwen2_moe(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("qkv_bias", config.query_key_value_bias);
  write_windows_by_layer(out, config);
  write_experts(out, config, "num_experts");
  out.field("moe_intermediate_size", config.expert_inner);
  out.field("shared_expert_intermediate_size", config.shared_inner);
  out.field("norm_topk_prob", config.normalised_routing);
  out.field("decoder_sparse_step", 1).field("mlp_only_layers", config.dense_layers);
}

DecoderConfig qwen2_moe(const DecoderFamily& family, int64_t experts, int64_t used, int64_t inner,
                        int64_t shared, const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.theta = 1e6;
  config.experts = experts, config.experts_per_token = used, config.expert_inner = inner;
  config.shared_inner = shared;
  if (!config.trial) {
    config.trained_positions = 8192;
    config.bos_token = config.eos_token = 151'643;
  }
  return config;
}

}  // namespace

const DecoderFamily& qwen2_moe_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("qwen2_moe", "Qwen2Moe");
    made.read = read_qwen2_moe, made.write = write_qwen2_moe;
    made.shared_up = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"};
    made.shared_down = "mlp.shared_expert.down_proj", made.shared_gate = "mlp.shared_expert_gate";
    DecoderConfig& defaults = made.defaults;
    defaults.query_key_value_bias = true;
    defaults.epsilon = 1e-6;
    defaults.experts = 8, defaults.experts_per_token = 2, defaults.expert_inner = 32;
    defaults.shared_inner = 64, defaults.shared_gate = true;
    constexpr int64_t kVocabulary = 151'936;
    made.presets = {qwen2_moe(made, 60, 4, 1408, 5632,
                              {"qwen1.5-moe-a2.7b", 2048, 5632, 24, 16, 16, false, kVocabulary}),
                    qwen2_moe(made, 8, 2, 48, 96, {"qwen2_moe-tiny", 64, 160, 2, 4, 2, false}),
                    qwen2_moe(made, 16, 4, 64, 128, {"qwen2_moe-mini", 96, 256, 4, 6, 2, false})};
    return made;
  }();
  return family;
}

}  // namespace tessera
