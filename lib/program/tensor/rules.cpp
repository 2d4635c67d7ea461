// SPDX-License-Identifier: MIT
#include "lib/program/tensor/rules.h"

#include <array>

#include "tessera/model/lora.h"

namespace tessera::program {
namespace {

constexpr std::array<std::pair<const char*, TensorRule>, 4> kRuleNames = {
    {{"columns", TensorRule::kColumns},
     {"rows", TensorRule::kRows},
     {"vocabulary", TensorRule::kVocabulary},
     {"whole", TensorRule::kWhole}}};

TensorRule rule_of(const Json& name) {
  for (const auto& [text, rule] : kRuleNames) {
    if (name.as_string() == text) return rule;
  }
  name.fail("is no rule; expected columns, rows, vocabulary or whole");
}

PathRule path_rule_of(const Json& json) {
  if (!json.is_object()) return {rule_of(json)};
  return {rule_of(json.at("cut")), static_cast<int>(json.at("parts").as_int64(1, 64))};
}

}  // namespace

TensorRules::TensorRules() {
  const auto add = [&](TensorRule rule, std::initializer_list<const char*> paths, int parts = 1) {
    for (const char* path : paths) rules_.emplace_back(path, PathRule{rule, parts});
  };
  add(TensorRule::kColumns, {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1", "fc_in",
                             "c_fc", "dense_h_to_4h", "query_key_value", "q_b_proj", "kv_b_proj",
                             "feed_forward.w1", "feed_forward.w3"});
  add(TensorRule::kColumns, {"c_attn", "Wqkv"}, /*parts=*/3);
  add(TensorRule::kColumns, {"gate_up_proj"}, /*parts=*/2);
  add(TensorRule::kRows, {"o_proj", "out_proj", "dense", "down_proj", "fc2", "fc_out", "c_proj",
                          "dense_4h_to_h", "feed_forward.w2"});
  add(TensorRule::kVocabulary, {"embed_tokens", "lm_head", "wte", "word_embeddings", "embed_in",
                                "embed_out", "output_projection"});
  add(TensorRule::kWhole,
      {"gate", "router", "q_a_proj", "kv_a_proj_with_mqa", "embed_positions", "wpe",
       "shared_expert_gate", "per_layer_input_gate", "per_layer_projection",
       "per_layer_model_projection", "embed_tokens_per_layer", "conv.in_proj", "conv.out_proj"});
}

void TensorRules::add(const Json& rules) {
  for (const auto& [path, rule] : rules.members()) {
    rules_.emplace(rules_.begin(), path, path_rule_of(rule));
  }
}

const PathRule* TensorRules::find(std::string_view path) const {
  const std::pair<std::string, PathRule>* best = nullptr;
  for (const auto& rule : rules_) {
    if (!LoraRule::matches(path, rule.first)) continue;
    if (best == nullptr || rule.first.size() > best->first.size()) best = &rule;
  }
  return best == nullptr ? nullptr : &best->second;
}

}  // namespace tessera::program
