// SPDX-License-Identifier: MIT
// GLM-4.5 and its kin (Zeng et al. 2025): routing by sigmoids with a bias for the choice, shared
// experts, dense layers first, heads that are rotated in part.
#include <numeric>

#include "lib/models/config_json.h"
#include "lib/models/rotary_decoder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kGlm4MoeHead = 128;  // of the published models

// Experts are chosen among all, not first among groups of them.
void require_one_group(const Json& json) {
  for (const char* name : {"n_group", "topk_group"}) {
    const auto groups = json.find(name);
    if (groups && groups->as_int64() != 1) groups->fail("only one group of experts is supported");
  }
}

int64_t first_experts(const DecoderConfig& config) {
  const auto dense = static_cast<int64_t>(config.dense_layers.size());
  check(dense == 0 || config.dense_layers.back() == dense - 1, ErrorCode::kInvalidArgument,
        "model ", config.name,
        ": its files name the first layer with experts, so dense layers "
        "must be the first ones");
  return dense;
}

void read_glm4_moe(const Json& json, DecoderConfig& config) {
  read_rotary_decoder(json, config);
  if (!json.contains("rms_norm_eps")) config.epsilon = 1e-5;  // transformers' default
  config.query_key_value_bias = json.get("attention_bias", false);
  config.query_key_norm = json.get("use_qk_norm", false);
  require_one_group(json);
  read_experts(json, config);
  config.router_aux_loss_coef = 0;  // transformers has none for the family
  config.expert_inner = config_json::size(json, {"moe_intermediate_size"});
  const int64_t shared = config_json::find_size(json, {"n_shared_experts"}).value_or(1);
  config.shared_inner = shared * config.expert_inner;
  config.normalised_routing = json.get("norm_topk_prob", true);
  config.routing_scale = json.get("routed_scaling_factor", 1.0);
  config.dense_layers.resize(
      static_cast<size_t>(std::min(json.get("first_k_dense_replace", int64_t{1}), config.layers)));
  std::iota(config.dense_layers.begin(), config.dense_layers.end(), int64_t{0});
}

void write_glm4_moe(JsonWriter& out, const DecoderConfig& config) {
  write_rotary_decoder(out, config);
  out.field("attention_bias", config.query_key_value_bias);
  out.field("use_qk_norm", config.query_key_norm);
  out.field("n_routed_experts", config.experts);
  out.field("num_experts_per_tok", config.experts_per_token);
  out.field("n_group", 1).field("topk_group", 1);
  check(config.shared_inner > 0 && config.shared_inner % config.expert_inner == 0,
        ErrorCode::kInvalidArgument, "model ", config.name,
        ": its files name a number of shared experts of ", config.expert_inner,
        " inner columns each, of which ", config.shared_inner, " is no multiple");
  out.field("n_shared_experts", config.shared_inner / config.expert_inner);
  out.field("moe_intermediate_size", config.expert_inner);
  out.field("norm_topk_prob", config.normalised_routing);
  out.field("routed_scaling_factor", config.routing_scale);
  out.field("first_k_dense_replace", first_experts(config));
  out.field("num_nextn_predict_layers", 0);  // layers behind the last one, which are not read
}

DecoderConfig glm4_moe(const DecoderFamily& family, int64_t experts, int64_t used, int64_t inner,
                       const RotarySize& size) {
  DecoderConfig config = sized(family, size);
  config.rotary.theta = 1e6;
  config.experts = experts, config.experts_per_token = used;
  config.expert_inner = config.shared_inner = inner;
  if (!config.trial) {
    config.trained_positions = 131'072;
    config.query_key_value_bias = true;
    config.eos_token = config.pad_token = 151'329;
  }
  return config;
}

}  // namespace

const DecoderFamily& glm4_moe_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = rotary_family("glm4_moe", "Glm4Moe");
    made.read = read_glm4_moe, made.write = write_glm4_moe;
    made.shared_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
    made.shared_down = "mlp.shared_experts.down_proj";
    DecoderConfig& defaults = made.defaults;
    defaults.epsilon = 1e-5;
    defaults.rotary_share = 0.5;
    defaults.sigmoid_routing = defaults.normalised_routing = true;
    defaults.experts = 8, defaults.experts_per_token = 2;
    defaults.expert_inner = defaults.shared_inner = 32;
    defaults.dense_layers = {0};
    constexpr int64_t kVocabulary = 151'552;
    made.presets = {
        glm4_moe(made, 128, 8, 1408,
                 {"glm-4.5-air", 4096, 10'944, 46, 96, 8, false, kVocabulary, kGlm4MoeHead}),
        glm4_moe(made, 8, 2, 48, {"glm4_moe-tiny", 64, 160, 2, 4, 2, false, 0, 24}),
        glm4_moe(made, 16, 4, 64, {"glm4_moe-mini", 96, 256, 4, 6, 2, false, 0, 24})};
    return made;
  }();
  return family;
}

}  // namespace tessera
