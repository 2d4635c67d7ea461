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

// Cost that stages share evenly. kTime and kMeasured are costs of one run, which a
// PipelineConfig has as block_costs.
enum class StageBalance { kTime, kFlops, kParameters, kMeasured };
template <>
inline constexpr auto kNames<StageBalance> =
    std::to_array<Named<StageBalance>>({{"time", StageBalance::kTime},
                                        {"flops", StageBalance::kFlops},
                                        {"parameters", StageBalance::kParameters},
                                        {"measured", StageBalance::kMeasured}});

// Names of the costs that the model alone says: values of PipelineConfig::balance.
std::vector<std::string> model_balances();

// By name. Throws Error(kInvalidArgument) with the known names. stage_balance(): one of
// model_balances().
ScheduleKind schedule_kind(const std::string& name);
StageBalance stage_balance(const std::string& name);

// Whether the text is the schedule's name.
inline bool is(const std::string& schedule, ScheduleKind kind) {
  return schedule == kNames<ScheduleKind>[static_cast<size_t>(kind)].first;
}

}  // namespace tessera
