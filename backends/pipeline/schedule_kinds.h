// SPDX-License-Identifier: MIT
#pragma once
// The names in PipelineConfig: schedules, and what stages are balanced by.
#include <array>
#include <string>
#include <vector>

#include "lib/core/field.h"

namespace tessera {

enum class ScheduleKind { kGPipe, kOneFOneB, kZeroBubbleH1, kInterleaved };
template <>
inline constexpr auto kNames<ScheduleKind> =
    std::to_array<Named<ScheduleKind>>({{"gpipe", ScheduleKind::kGPipe},
                                        {"1f1b", ScheduleKind::kOneFOneB},
                                        {"zbh1", ScheduleKind::kZeroBubbleH1},
                                        {"interleaved", ScheduleKind::kInterleaved}});

// Where PipelineConfig::block_costs does not say what a block costs.
enum class BalancedBy { kFlops, kParameters };
template <>
inline constexpr auto kNames<BalancedBy> = std::to_array<Named<BalancedBy>>(
    {{"flops", BalancedBy::kFlops}, {"parameters", BalancedBy::kParameters}});

// By name. Throws Error(kInvalidArgument) with the names there are.
ScheduleKind schedule_kind(const std::string& name);
BalancedBy balanced_by(const std::string& name);

// All names, as help and the layout fuzzer list them.
template <typename T>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : kNames<T>) names.emplace_back(name);
  return names;
}

}  // namespace tessera
