#include "tessera/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/core/error.h"

namespace tessera {

std::vector<std::string> lr_schedule_names() { return {"constant", "linear", "cosine"}; }

LrScheduleKind parse_lr_schedule(const std::string& name) {
  if (name == "constant" || name == "constant_with_warmup") return LrScheduleKind::kConstant;
  if (name == "linear") return LrScheduleKind::kLinear;
  if (name == "cosine") return LrScheduleKind::kCosine;
  fail(ErrorCode::kInvalidArgument, "learning-rate schedule \"", name,
       "\" is unknown; use constant, constant_with_warmup, linear or cosine");
}

double LrSchedule::at(int64_t updates_done) const {
  const auto done = static_cast<double>(updates_done);
  const auto warmup = static_cast<double>(warmup_steps);
  if (updates_done < warmup_steps) return peak * done / std::max(1.0, warmup);
  const double progress =
      (done - warmup) / std::max(1.0, static_cast<double>(total_steps) - warmup);
  switch (kind) {
    case LrScheduleKind::kConstant:
      return peak;
    case LrScheduleKind::kLinear:
      return peak * std::max(0.0, 1.0 - progress);
    case LrScheduleKind::kCosine:
      return peak * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  }
  return peak;
}

}  // namespace tessera
