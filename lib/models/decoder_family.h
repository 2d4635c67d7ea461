// SPDX-License-Identifier: MIT
#pragma once
// A family of models with the names in its files. One source file each maps config.json to
// DecoderConfig and back, and lists published sizes.
#include <span>
#include <string>
#include <vector>

#include "tessera/core/json.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

struct DecoderFamily {
  std::string model_type, causal_class, classifier_class;

  // Layer blocks are "<layers>0", "<layers>1" ... In a Hugging Face checkpoint all names except the
  // heads' own weights have this prefix.
  std::string layers, checkpoint_prefix;
  // Module names inside blocks; parameters add ".weight" and ".bias".
  std::string table, position_table = {}, embedding_norm = {};
  std::string input_norm;
  std::vector<std::string> query_key_value;  // three, or one that holds all
  std::string dense;
  std::string query_norm = {}, key_norm = {};
  std::string sinks = {};  // a parameter
  std::string attention_norm;
  std::vector<std::string> up;  // gate and up in a gated layer
  std::string down;
  std::string router = {}, experts = {};    // modules of a layer with experts
  std::vector<std::string> shared_up = {};  // of the shared expert: gate and up
  std::string shared_down = {}, shared_gate = {};
  std::string final_norm;

  std::vector<std::string> lora_targets;  // PEFT's defaults for the family

  bool by_head = false;       // the single matrix interleaves query, key and value by head
  bool in_out = false;        // layers' weights are stored [in, out]
  bool narrow_ends = false;   // scaled residual initialisation: divided by sqrt(2 * layers)
  bool constant_pad = false;  // pad_token gets no gradient

  DecoderConfig defaults;
  // Keys beyond those of every family (config_json.h).
  void (*read)(const Json& json, DecoderConfig& config);
  void (*write)(JsonWriter& out, const DecoderConfig& config);
  std::vector<DecoderConfig> presets;
};

const DecoderFamily& bloom_family();
const DecoderFamily& glm4_moe_family();
const DecoderFamily& gpt2_family();
const DecoderFamily& gpt_oss_family();
const DecoderFamily& llama_family();
const DecoderFamily& mistral_family();
const DecoderFamily& mixtral_family();
const DecoderFamily& olmoe_family();
const DecoderFamily& qwen2_family();
const DecoderFamily& qwen2_moe_family();
const DecoderFamily& qwen3_family();
const DecoderFamily& qwen3_moe_family();

std::span<const DecoderFamily* const> decoder_families();
const DecoderFamily* find_family(const std::string& model_type);  // null: unknown
// Message about an unknown family with the known names.
std::string unknown_family(const std::string& model_type);
// Throws Error(kInvalidArgument).
const DecoderFamily& family_of(const std::string& model_type);
inline const DecoderFamily& family_of(const DecoderConfig& config) {
  return family_of(config.model_type);
}

}  // namespace tessera
