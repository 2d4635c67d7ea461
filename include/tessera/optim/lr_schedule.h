// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Learning rate as a function of the number of updates made so far.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Kinds of schedules; transformers and DeepSpeed name them alike.
enum class LrScheduleKind {
  kConstant,
  kConstantWithWarmup,
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kCosineWithMinLr,
  kCosineWarmupWithMinLr,
  kPolynomial,
  kInverseSqrt,
  kWarmupStableDecay,
  kReduceOnPlateau,
  kWarmupLr,  ///< this and the next two: DeepSpeed's
  kWarmupDecayLr,
  kWarmupCosineLr,
};

/// Hugging Face's names (constant, linear, cosine_with_restarts, ...) and DeepSpeed's. Throws
/// Error(kInvalidArgument) naming the kinds for any other name.
LrScheduleKind parse_lr_schedule(const std::string& name);
std::vector<std::string> lr_schedule_names();  ///< the names that parse_lr_schedule() accepts

/// What Hugging Face calls lr_scheduler_kwargs, with its names and defaults; a kind reads its own.
struct LrScheduleOptions {
  std::optional<double> num_cycles;  ///< cosines 0.5 (half a wave), with restarts 1
  /// cosine_with_min_lr, cosine_warmup_with_min_lr: one of both; reduce_lr_on_plateau: min_lr
  std::optional<double> min_lr, min_lr_rate;
  std::optional<double> warmup_lr_rate;     ///< cosine_warmup_with_min_lr: 1 / warmup steps
  double lr_end = 1e-7, power = 1;          ///< polynomial
  std::optional<int64_t> timescale;         ///< inverse_sqrt: warmup steps, or 10,000
  std::optional<int64_t> num_decay_steps;   ///< warmup_stable_decay: must be given
  std::optional<int64_t> num_stable_steps;  ///< warmup_stable_decay: what is left
  /// warmup_stable_decay: linear (unless given), cosine, 1-sqrt; DeepSpeed's: log, linear
  std::optional<std::string> warmup_type;
  std::string decay_type = "cosine";                  ///< the same
  double min_lr_ratio = 0;                            ///< warmup_stable_decay
  double factor = 0.1, threshold = 1e-4, eps = 1e-8;  ///< reduce_lr_on_plateau
  int64_t patience = 10, cooldown = 0;                ///< reduce_lr_on_plateau
  double warmup_min_lr = 0;                           ///< WarmupLR, WarmupDecayLR
  std::optional<int64_t> total_num_steps;             ///< WarmupDecayLR, WarmupCosineLR: all steps
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;  ///< WarmupCosineLR
};

/// From a JSON object; empty text gives the defaults. Throws Error(kInvalidArgument) for keys that
/// are not this kind's and for values of another type.
LrScheduleOptions parse_lr_schedule_options(LrScheduleKind kind, const std::string& json);

/// The formulas of transformers' get_*_schedule functions, and of DeepSpeed's schedulers, whose
/// first update is made at their least rate and which lag a step behind from then on.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kLinear;  ///< the formula
  double peak = 5e-5;                             ///< the largest rate
  int64_t warmup_steps = 0;                       ///< updates until the peak
  int64_t total_steps = 0;         ///< until the rate has fallen; 0: a Trainer's max_steps
  LrScheduleOptions options = {};  ///< options that this kind reads

  /// reduce_lr_on_plateau gives the peak: see PlateauRate. Throws as end() does.
  double at(int64_t updates_done) const;
  /// The updates after which the rate has fallen; none for kinds that do not fall to an end. Throws
  /// Error(kInvalidArgument) when total_steps is needed and not set.
  std::optional<int64_t> end() const;
  /// Throws Error(kInvalidArgument) when the options do not fit the kind or the peak.
  void validate() const;
};

/// A rate that is multiplied by `factor` once a metric (less is better) has not improved for more
/// than `patience` observations: torch's ReduceLROnPlateau in mode min, with a relative threshold.
class PlateauRate {
 public:
  /// Begins with the rate `start`.
  PlateauRate(double start, const LrScheduleOptions& options)
      : state_{.rate = start}, options_(options) {}

  /// What a checkpoint keeps of a PlateauRate.
  struct State {
    double rate = 0;                                        ///< the rate now
    double best = std::numeric_limits<double>::infinity();  ///< the least metric so far
    int64_t bad = 0, cooldown_left = 0;  ///< observations without improvement, and left to wait
    bool operator==(const State&) const = default;  ///< compares all members
  };

  double rate() const { return state_.rate; }  ///< the rate now
  void observe(double metric);  ///< takes a metric, equal on all ranks; NaN is no improvement
  const State& state() const { return state_; }         ///< the state after the observations so far
  void restore(const State& state) { state_ = state; }  ///< continues from this state

 private:
  State state_;
  LrScheduleOptions options_;
};

}  // namespace tessera
