// SPDX-License-Identifier: MIT
#include "tessera/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/core/error.h"

namespace tessera {
namespace {

double wave(double cycles, double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * cycles * 2 * progress));
}

double above(double floor, double factor) { return std::max(0.0, factor * (1 - floor) + floor); }

// A curve of warmup_stable_decay: 0 at progress 0 and 1 at progress 1.
double rise(const std::string& type, double progress) {
  if (type == "cosine") return 0.5 * (1 - std::cos(std::numbers::pi * progress));
  return type == "linear" ? progress : 1 - std::sqrt(1 - progress);
}

double fall(const std::string& type, double progress, double cycles) {
  if (type == "cosine") return wave(cycles, progress);
  return type == "linear" ? 1 - progress : 1 - std::sqrt(progress);
}

// Rate relative to the peak after `done` updates.
class Factor {
 public:
  Factor(const LrSchedule& schedule, int64_t updates_done)
      : s_(schedule),
        o_(schedule.options),
        done_(static_cast<double>(updates_done)),
        warmup_(static_cast<double>(schedule.warmup_steps)),
        after_(std::max(1.0, static_cast<double>(schedule.total_steps) - warmup_)),
        progress_((done_ - warmup_) / after_) {}

  double value() const {
    switch (s_.kind) {
      case LrScheduleKind::kConstant:
      case LrScheduleKind::kReduceOnPlateau:
        return 1;
      case LrScheduleKind::kCosineWarmupWithMinLr:
        return cosine_warmup_with_min_lr();
      case LrScheduleKind::kWarmupStableDecay:
        return warmup_stable_decay();
      case LrScheduleKind::kWarmupLr:
      case LrScheduleKind::kWarmupDecayLr:
      case LrScheduleKind::kWarmupCosineLr:
        return deepspeed();
      default:
        return done_ < warmup_ ? done_ / std::max(1.0, warmup_) : after_warmup();
    }
  }

 private:
  double after_warmup() const {
    switch (s_.kind) {
      case LrScheduleKind::kLinear:
        return std::max(0.0, (static_cast<double>(s_.total_steps) - done_) / after_);
      case LrScheduleKind::kCosine:
        return std::max(0.0, wave(o_.num_cycles.value_or(0.5), progress_));
      case LrScheduleKind::kCosineWithMinLr:
        return above(least(), wave(o_.num_cycles.value_or(0.5), progress_));
      case LrScheduleKind::kCosineWithRestarts: {
        const double cycles = o_.num_cycles.value_or(1) * progress_;
        return progress_ >= 1 ? 0 : std::max(0.0, wave(0.5, cycles - std::floor(cycles)));
      }
      case LrScheduleKind::kPolynomial: {
        const double end = o_.lr_end / s_.peak;
        return progress_ > 1 ? end : (1 - end) * std::pow(1 - progress_, o_.power) + end;
      }
      case LrScheduleKind::kInverseSqrt: {
        const int64_t scale = o_.timescale.value_or(s_.warmup_steps > 0 ? s_.warmup_steps : 10'000);
        const auto timescale = static_cast<double>(scale);
        return 1 / std::sqrt((done_ + timescale - warmup_) / timescale);
      }
      default:
        return 1;
    }
  }

  // The first and the last update are at progress 1 / warmup and 1: no update has rate 0.
  double cosine_warmup_with_min_lr() const {
    if (done_ < warmup_) {
      if (!o_.warmup_lr_rate) return (done_ + 1) / std::max(1.0, warmup_);
      const double start = *o_.warmup_lr_rate;
      return start + (1 - start) * done_ / std::max(1.0, warmup_ - 1);
    }
    return above(least(), wave(o_.num_cycles.value_or(0.5), progress_ + 1 / after_));
  }

  double warmup_stable_decay() const {
    const auto decay = static_cast<double>(o_.num_decay_steps.value_or(0));
    const double stable = o_.num_stable_steps
                              ? static_cast<double>(*o_.num_stable_steps)
                              : static_cast<double>(s_.total_steps) - warmup_ - decay;
    const double decays_from = warmup_ + stable;
    if (done_ < warmup_) {
      return above(o_.min_lr_ratio, rise(o_.warmup_type.value_or("linear"), done_ / warmup_));
    }
    if (done_ < decays_from) return 1;
    if (done_ >= decays_from + decay) return o_.min_lr_ratio;
    return above(o_.min_lr_ratio,
                 fall(o_.decay_type, (done_ - decays_from) / decay, o_.num_cycles.value_or(0.5)));
  }

  double deepspeed() const {
    const bool cosine = s_.kind == LrScheduleKind::kWarmupCosineLr;
    const double floor = cosine ? o_.warmup_min_ratio : o_.warmup_min_lr / s_.peak;
    const double last = done_ - 1;  // its last_batch_iteration
    if (last < 0) return cosine ? 0 : floor;
    const double warmup = std::max(2.0, warmup_);
    const auto total = static_cast<double>(o_.total_num_steps.value_or(s_.total_steps));
    if (last < warmup) {
      const bool linear = o_.warmup_type == "linear";
      return floor + (1 - floor) * (linear ? last / warmup : std::log(last + 1) / std::log(warmup));
    }
    const double decay = std::max(1.0, total - warmup);
    if (cosine) {
      return above(o_.cos_min_ratio, wave(0.5, std::min(1.0, (last - warmup + 1) / decay)));
    }
    const bool decays = s_.kind == LrScheduleKind::kWarmupDecayLr;
    return decays ? floor + (1 - floor) * std::max(0.0, (total - last) / decay) : 1;
  }

  double least() const { return o_.min_lr ? *o_.min_lr / s_.peak : o_.min_lr_rate.value_or(0); }

  const LrSchedule& s_;
  const LrScheduleOptions& o_;
  double done_, warmup_, after_, progress_;
};

}  // namespace

double LrSchedule::at(int64_t updates_done) const {
  end();
  return peak == 0 ? 0 : peak * Factor(*this, updates_done).value();
}

void PlateauRate::observe(double metric) {
  auto& [rate, best, bad, cooldown_left] = state_;
  const bool better = metric < best * (1 - options_.threshold);
  best = better ? metric : best;
  bad = better ? 0 : bad + 1;
  if (cooldown_left > 0) {
    --cooldown_left;
    bad = 0;
  }
  if (bad <= options_.patience) return;
  const double lower = std::max(rate * options_.factor, options_.min_lr.value_or(0));
  if (rate - lower > options_.eps) rate = lower;
  cooldown_left = options_.cooldown;
  bad = 0;
}

}  // namespace tessera
