#pragma once
// Learning rate as a function of the number of updates made so far.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class LrScheduleKind { kConstant, kLinear, kCosine };

// Throws Error(kInvalidArgument) naming the kinds for any other name. Names: constant, linear,
// cosine.
LrScheduleKind parse_lr_schedule(const std::string& name);
std::vector<std::string> lr_schedule_names();

// Linear warm-up from 0 over warmup_steps, then constant, linear to 0 or half a cosine to 0 at
// total_steps: the formulas of transformers' get_{constant,linear,cosine}_schedule_with_warmup.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kLinear;
  double peak = 5e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  double at(int64_t updates_done) const;
};

}  // namespace tessera
