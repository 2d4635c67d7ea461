// SPDX-License-Identifier: MIT
#pragma once
// A family of models: what its files call things. A file each, which maps config.json to the
// description and back, and lists the published sizes.
#include <span>
#include <string>
#include <vector>

#include "tessera/core/json.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

struct DecoderFamily {
  std::string model_type, causal_class, classifier_class;

  // Blocks of layers are "<layers>0", "<layers>1" ... In a Hugging Face checkpoint everything but
  // the heads' own weights has the prefix before its name.
  std::string layers, checkpoint_prefix;
  // Modules inside the blocks, with ".weight" and ".bias" as they have them.
  std::string table, position_table = {}, embedding_norm = {};
  std::string input_norm;
  std::vector<std::string> query_key_value;  // three, or one that holds all of them
  std::string dense;
  std::string query_norm = {}, key_norm = {};
  std::string attention_norm;
  std::vector<std::string> up;  // of a gated layer gate and up
  std::string down;
  std::string final_norm;

  std::vector<std::string> lora_targets;  // as PEFT chooses them for the family

  bool by_head = false;       // the one matrix has a head's query, key and value side by side
  bool in_out = false;        // weights of layers are stored [in, out]
  bool narrow_ends = false;   // weights into the residual are drawn by sqrt(2 * layers) narrower
  bool constant_pad = false;  // a looked-up pad_token gets no gradient

  DecoderConfig defaults;
  // Keys beyond those of every family (config_json.h).
  void (*read)(const Json& json, DecoderConfig& config);
  void (*write)(JsonWriter& out, const DecoderConfig& config);
  std::vector<DecoderConfig> presets;
};

const DecoderFamily& bloom_family();
const DecoderFamily& gpt2_family();
const DecoderFamily& llama_family();
const DecoderFamily& mistral_family();
const DecoderFamily& qwen2_family();
const DecoderFamily& qwen3_family();

std::span<const DecoderFamily* const> decoder_families();
const DecoderFamily* find_family(const std::string& model_type);  // null: there is none
// Why there is none, with the known names.
std::string unknown_family(const std::string& model_type);
// Throws Error(kInvalidArgument).
const DecoderFamily& family_of(const std::string& model_type);
inline const DecoderFamily& family_of(const DecoderConfig& config) {
  return family_of(config.model_type);
}

}  // namespace tessera
