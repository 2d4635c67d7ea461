// SPDX-License-Identifier: MIT
#pragma once
// Language models with sizes given by a test.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tessera/models/language_model.h"

namespace tessera::testing {

// Unset sizes keep the family's defaults; sizes that a family lacks are ignored.
struct Sizes {
  std::optional<int64_t> vocabulary = {}, hidden = {}, heads = {}, layers = {}, inner = {},
                         key_heads = {}, head_dim = {}, max_positions = {};
  std::optional<double> initializer_range = {};
  std::optional<double> dropout = {};  // for every dropout of the family
};

inline DecoderConfig sized(const Sizes& sizes, DecoderConfig config) {
  const auto set = [](auto& member, const auto& size) {
    if (size) member = *size;
  };
  set(config.vocabulary, sizes.vocabulary);
  set(config.hidden, sizes.hidden);
  set(config.heads, sizes.heads);
  set(config.layers, sizes.layers);
  set(config.max_positions, sizes.max_positions);
  set(config.initializer_range, sizes.initializer_range);
  set(config.attention_dropout, sizes.dropout);
  using Positions = DecoderConfig::Positions;
  if (config.positions != Positions::kAlibi) set(config.inner, sizes.inner);
  if (config.positions == Positions::kRotary) {
    set(config.key_heads, sizes.key_heads);
    set(config.head_dim, sizes.head_dim);
  }
  if (config.positions != Positions::kRotary) set(config.residual_dropout, sizes.dropout);
  if (config.positions == Positions::kLearned) set(config.embedding_dropout, sizes.dropout);
  return config;
}
inline DecoderConfig sized(const std::string& model_type, const Sizes& sizes) {
  return sized(sizes, LanguageModel::defaults(model_type));
}

inline ModelSpec causal(const DecoderConfig& config) { return LanguageModel(config).make_causal(); }
inline ModelSpec classifier(const DecoderConfig& config, int64_t num_labels) {
  return LanguageModel(config).make_classifier(num_labels);
}

}  // namespace tessera::testing
