// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string_view>

#include "tessera/checkpoint/adapter.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Unsupported keys that change the computation unless null, false or empty.
constexpr const char* kNotBuilt[] = {"alora_invocation_tokens",
                                     "alpha_pattern",
                                     "arrow_config",
                                     "corda_config",
                                     "kasa_config",
                                     "layer_replication",
                                     "loftq_config",
                                     "lora_bias",
                                     "lora_ga_config",
                                     "monteclora_config",
                                     "rank_pattern",
                                     "trainable_token_indices",
                                     "use_bdlora",
                                     "use_dora",
                                     "use_qalora",
                                     "velora_config",
                                     "ensure_weight_tying"};

bool is_off(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.as_bool();
  return (value.is_object() || value.is_array()) && value.size() == 0;
}

std::vector<std::string> names_of(const Json& list) {
  std::vector<std::string> names;
  for (const Json& name : list.items()) names.push_back(name.as_string());
  return names;
}

void text_or_null(JsonWriter& json, const char* key, const std::string& text) {
  json.key(key);
  if (text.empty()) {
    json.null();
  } else {
    json.value(text);
  }
}

}  // namespace

AdapterConfig AdapterConfig::from_json(const Json& json) {
  AdapterConfig config;
  const Json kind = json.at("peft_type");
  if (kind.as_string() != "LORA") {
    kind.fail("adapters of type " + kind.as_string() + " are not supported; only LORA is");
  }
  for (const char* key : kNotBuilt) {
    if (const auto value = json.find(key); value && !is_off(*value)) {
      value->fail("is not supported; only plain LoRA is");
    }
  }
  if (const auto bias = json.find("bias"); bias && bias->as_string() != "none") {
    bias->fail("trained biases are not supported; only \"none\" is");
  }
  if (const auto task = json.find("task_type")) {
    config.task_type = task->as_string();
    if (config.task_type != "SEQ_CLS" && config.task_type != "CAUSAL_LM") {
      task->fail("is not supported; only CAUSAL_LM and SEQ_CLS are");
    }
  }
  LoraRule& rule = config.rule;
  rule.r = json.at("r").as_int64(1, int64_t{1} << 20);
  rule.alpha = json.get("lora_alpha", rule.alpha);
  rule.dropout = json.get("lora_dropout", rule.dropout);
  rule.use_rslora = json.get("use_rslora", false);
  if (const auto init = json.find("init_lora_weights"); init && init->is_string()) {
    if (init->as_string() != "gaussian") {
      init->fail(
          "is not supported: it changes the base model's weights; true, false and "
          "\"gaussian\" are");
    }
    rule.init = LoraInit::kGaussian;
  }
  if (const auto targets = json.find("target_modules"); targets && targets->is_array()) {
    rule.target_modules = names_of(*targets);
    std::ranges::sort(rule.target_modules);
  }
  if (const auto targets = json.find("target_parameters"); targets) {
    rule.target_parameters = names_of(*targets);
    if (!rule.target_parameters.empty() && rule.dropout > 0) {
      json.at("lora_dropout").fail("PEFT has no dropout with target_parameters; 0 is expected");
    }
  }
  if (const auto saved = json.find("modules_to_save")) rule.modules_to_save = names_of(*saved);
  config.base_model = json.get("base_model_name_or_path", "");
  config.fan_in_fan_out = json.get("fan_in_fan_out", false);
  return config;
}

std::string AdapterConfig::to_json() const {
  JsonWriter json(2);
  json.begin_object();
  text_or_null(json, "base_model_name_or_path", base_model);
  json.field("bias", "none");
  json.field("fan_in_fan_out", fan_in_fan_out);
  json.field("inference_mode", true);
  if (rule.init == LoraInit::kGaussian) {
    json.field("init_lora_weights", "gaussian");
  } else {
    json.field("init_lora_weights", true);
  }
  json.field("lora_alpha", rule.alpha);
  json.field("lora_dropout", rule.dropout);
  if (rule.modules_to_save.empty()) {
    json.key("modules_to_save").null();
  } else {
    json.field("modules_to_save", rule.modules_to_save);
  }
  json.field("peft_type", "LORA");
  json.field("r", rule.r);
  json.field("target_modules", rule.target_modules);
  if (!rule.target_parameters.empty()) json.field("target_parameters", rule.target_parameters);
  text_or_null(json, "task_type", task_type);
  json.field("use_dora", false);
  json.field("use_rslora", rule.use_rslora);
  return json.end_object().text() + "\n";
}

}  // namespace tessera
