// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Learning-rate schedules: the rate as a function of the number of updates so far.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Kinds of schedules, named as in transformers and DeepSpeed.
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

/// Kind by Hugging Face's names (constant, linear, cosine_with_restarts, ...) and DeepSpeed's.
/// Throws Error(kInvalidArgument) with the known names for another name.
LrScheduleKind parse_lr_schedule(const std::string& name);
std::vector<std::string> lr_schedule_names();  ///< names that parse_lr_schedule() accepts

/// Hugging Face's lr_scheduler_kwargs, with its names and defaults; each kind reads its own.
struct LrScheduleOptions {
  std::optional<double> num_cycles;  ///< cosine: 0.5 (half a wave); with restarts: 1
  /// cosine_with_min_lr, cosine_warmup_with_min_lr: exactly one; reduce_lr_on_plateau: min_lr
  std::optional<double> min_lr, min_lr_rate;
  std::optional<double> warmup_lr_rate;     ///< cosine_warmup_with_min_lr: 1 / warmup steps
  double lr_end = 1e-7, power = 1;          ///< polynomial
  std::optional<int64_t> timescale;         ///< inverse_sqrt: default warmup steps, or 10,000
  std::optional<int64_t> num_decay_steps;   ///< warmup_stable_decay: required
  std::optional<int64_t> num_stable_steps;  ///< warmup_stable_decay: default: the remaining steps
  /// warmup_stable_decay: linear (default), cosine, 1-sqrt; DeepSpeed's: log, linear
  std::optional<std::string> warmup_type;
  std::string decay_type = "cosine";                  ///< warmup_stable_decay: like warmup_type
  double min_lr_ratio = 0;                            ///< warmup_stable_decay
  double factor = 0.1, threshold = 1e-4, eps = 1e-8;  ///< reduce_lr_on_plateau
  int64_t patience = 10, cooldown = 0;                ///< reduce_lr_on_plateau
  double warmup_min_lr = 0;                           ///< WarmupLR, WarmupDecayLR
  std::optional<int64_t> total_num_steps;             ///< WarmupDecayLR, WarmupCosineLR: all steps
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;  ///< WarmupCosineLR
};

/// Options from a JSON object; empty text: defaults. Throws Error(kInvalidArgument) for another
/// kind's keys and for values of another type.
LrScheduleOptions parse_lr_schedule_options(LrScheduleKind kind, const std::string& json);

/// Formulas of transformers' get_*_schedule functions and of DeepSpeed's schedulers. The latter
/// make the first update at their least rate, and lag one step behind.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kLinear;  ///< kind of formula
  double peak = 5e-5;                             ///< highest rate
  int64_t warmup_steps = 0;                       ///< number of updates until the peak
  int64_t total_steps = 0;         ///< updates until the end; 0: a Trainer's max_steps
  LrScheduleOptions options = {};  ///< options of this kind

  /// The rate after so many updates; for reduce_lr_on_plateau the peak (see PlateauRate). Throws as
  /// end() does.
  double at(int64_t updates_done) const;
  /// Number of updates until the rate stops falling; none for kinds without an end. Throws
  /// Error(kInvalidArgument) when total_steps is needed and not set.
  std::optional<int64_t> end() const;
  /// Throws Error(kInvalidArgument) if the options do not fit the kind or the peak.
  void validate() const;
};

/// torch's ReduceLROnPlateau in mode min, with a relative threshold: multiplies the rate by
/// `factor` after more than `patience` observations without improvement.
class PlateauRate {
 public:
  /// Starts at the rate `start`.
  PlateauRate(double start, const LrScheduleOptions& options)
      : state_{.rate = start}, options_(options) {}

  /// State of a PlateauRate in a checkpoint.
  struct State {
    double rate = 0;                                        ///< current rate
    double best = std::numeric_limits<double>::infinity();  ///< lowest metric so far
    /// Observations without improvement, and remaining cooldown.
    int64_t bad = 0, cooldown_left = 0;
    bool operator==(const State&) const = default;  ///< compares all members
  };

  double rate() const { return state_.rate; }  ///< current rate
  void observe(double metric);  ///< adds a metric, equal on all ranks; NaN is no improvement
  const State& state() const { return state_; }         ///< state after the observations so far
  void restore(const State& state) { state_ = state; }  ///< continues from this state

 private:
  State state_;
  LrScheduleOptions options_;
};

}  // namespace tessera
