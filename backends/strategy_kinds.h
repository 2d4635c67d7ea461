// SPDX-License-Identifier: MIT
#pragma once
// Names in ParallelConfig::strategy.
#include <array>
#include <optional>
#include <string>

#include "lib/core/field.h"

namespace tessera {

// In the order of --help and of strategy_rows().
enum class StrategyKind { kSingle, kDdp, kZero1, kZero2, kZero3, kFsdp };
template <>
inline constexpr auto kNames<StrategyKind> =
    std::to_array<Named<StrategyKind>>({{"single", StrategyKind::kSingle},
                                        {"ddp", StrategyKind::kDdp},
                                        {"zero1", StrategyKind::kZero1},
                                        {"zero2", StrategyKind::kZero2},
                                        {"zero3", StrategyKind::kZero3},
                                        {"fsdp", StrategyKind::kFsdp}});

// Whether the text is the strategy's name.
inline bool is(const std::string& strategy, StrategyKind kind) {
  return strategy == kNames<StrategyKind>[static_cast<size_t>(kind)].first;
}

constexpr std::array kZeroStages{StrategyKind::kZero1, StrategyKind::kZero2, StrategyKind::kZero3};
// The strategy's ZeRO stage, 1 to 3; none: it is no stage.
inline std::optional<int> zero_stage(const std::string& strategy) {
  for (size_t i = 0; i < kZeroStages.size(); ++i) {
    if (is(strategy, kZeroStages[i])) return static_cast<int>(i) + 1;
  }
  return std::nullopt;
}

}  // namespace tessera
