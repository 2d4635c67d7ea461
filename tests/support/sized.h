#pragma once
// Configurations of language models in the sizes that a test names.
#include <cstdint>
#include <optional>
#include <utility>

namespace tessera::testing {

// What is left out stays as the family has it, and what a family lacks it is not asked for.
struct Sizes {
  std::optional<int64_t> vocabulary = {}, hidden = {}, heads = {}, layers = {}, inner = {},
                         key_heads = {}, head_dim = {}, max_positions = {};
  std::optional<double> initializer_range = {};
  std::optional<double> dropout = {};  // of every kind
};

template <typename Config>
Config sized(const Sizes& sizes, Config config = {}) {
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
  if constexpr (requires { config.inner; }) set(config.inner, sizes.inner);
  if constexpr (requires { config.key_heads; }) set(config.key_heads, sizes.key_heads);
  if constexpr (requires { config.head_dim; }) set(config.head_dim, sizes.head_dim);
  if constexpr (requires { config.hidden_dropout; }) set(config.hidden_dropout, sizes.dropout);
  if constexpr (requires { config.embedding_dropout; }) {
    set(config.embedding_dropout, sizes.dropout);
    set(config.residual_dropout, sizes.dropout);
  }
  return config;
}

}  // namespace tessera::testing
