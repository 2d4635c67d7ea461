// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Training loop: batch, forward and backward, clip, step, report. Independent of parallelism.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/core/phase_clock.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/lr_schedule.h"
#include "tessera/train/early_stopping.h"
#include "tessera/train/trainer_state.h"
#include "tessera/train/weight_average.h"

namespace tessera {

/// Returns the micro-batches of this rank's next optimizer step; empty at the end of the data. All
/// ranks' sources must end at the same step; otherwise all throw Error(kDataLoss) with the ranks
/// whose data ended.
using BatchSource = std::function<std::vector<MicroBatch>()>;

/// Called between steps with the step's number, once it is issued and before its report: to save,
/// evaluate or observe(). Returns whether to continue, equal on every rank.
using StepBoundary = std::function<bool(int64_t step)>;

/// Options of Trainer.
struct TrainerOptions {
  at::Device device = at::kCPU;  ///< device to which micro-batches are moved
  int64_t max_steps = 0;       ///< optimizer steps, skipped ones included; 0: until the source ends
  double max_grad_norm = 1.0;  ///< clip to this global norm; 0: no clipping
  LrSchedule schedule;         ///< its total_steps default to max_steps
  /// Replaces the schedule: rate after so many updates, equal on every rank.
  std::function<double(int64_t updates_done)> learning_rate = nullptr;
  /// Decay of a WeightAverage, which evaluations of fit() use; 0: none.
  double average_decay = 0;
  LossScalerConfig loss_scaler;  ///< enabled: loss scaling, for fp16
  /// Called before every update, after issuing the step's forward and backward.
  std::function<void()> before_update;
  /// Consecutive steps with a non-finite gradient norm before Error(kNumerics), which names the
  /// first non-finite gradient. Their updates are skipped; a loss scale falls meanwhile.
  int64_t max_nonfinite_steps = 1;  ///< without loss scaling
  int64_t max_overflow_steps = 20;  ///< with loss scaling
};

/// Report of one optimizer step, equal on every rank except for times.
struct StepReport {
  int64_t step = 0;                  ///< from 1
  double loss = 0;                   ///< mean over the global batch's targets; 0: none
  double grad_norm = 0;              ///< before clipping, unscaled
  double clip_coefficient = 1;       ///< factor of the gradients; 1: not clipped
  double learning_rate = 0;          ///< rate of this step's update
  double loss_scale = 1;             ///< factor of the loss
  bool skipped = false;              ///< whether the weights were left unchanged
  double target_count = 0;           ///< sum over all ranks; see MicroBatch
  std::vector<double> counters;      ///< see Block
  int64_t samples = 0, tokens = 0;   ///< sums over all ranks; see MicroBatch
  double step_time_s = 0;            ///< from the previous step's end to this one's
  double data_time_s = 0;            ///< waiting for the source
  std::optional<PhaseTimes> phases;  ///< times of the device
};

/// Report of one evaluation, equal on every rank except for this rank's members.
struct EvalReport {
  double loss = 0;               ///< mean over the targets of all ranks; NaN: none
  double target_count = 0;       ///< sum over all ranks
  std::vector<double> counters;  ///< see Block
  int64_t samples = 0;           ///< this rank's
  double time_s = 0;             ///< seconds on this rank
};

/// Callbacks of Trainer::fit(), equal on every rank and called at the same steps. An exception from
/// a callback on one rank ends all ranks. That rank rethrows it; an Error's message gets the
/// callback and the step in front. The others throw Error(kUnavailable) with the rank and that
/// message. To stop regularly, return false from `boundary`.
struct FitOptions {
  /// Receives a step's report, one step late. Evaluations, saves and the end of fit() follow the
  /// reports of all steps made so far.
  std::function<void(const StepReport&)> on_step = nullptr;
  /// Called between backward and clipping, e.g. for Strategy::for_each_gradient(). Gradients are
  /// loss-scaled.
  std::function<void(int64_t step)> on_gradients = nullptr;
  /// Steps between evaluations of the source that `evaluation` makes, which also run after the last
  /// step; 0: never. They use the average weights if there are any (TrainerOptions::average_decay).
  /// The loss is passed to observe(), unless no row had a target.
  int64_t evaluate_every = 0;
  int64_t evaluate_from = 0;  ///< first step of the count, e.g. an epoch's begin
  std::function<BatchSource()> evaluation = nullptr;  ///< see evaluate_every
  /// Receives each evaluation's report.
  std::function<void(int64_t step, const EvalReport&)> on_evaluation = nullptr;
  std::optional<EarlyStoppingConfig> early_stopping = std::nullopt;  ///< by evaluation losses
  /// Steps between calls of on_save, which also follow the last step, after the evaluation; 0:
  /// never.
  int64_t save_every = 0;
  int64_t save_from = 0;                                ///< first step of the count
  std::function<void(int64_t step)> on_save = nullptr;  ///< see save_every
  /// Called after each step, before evaluations and saves: whether to stop for an outside reason,
  /// such as a signal (StopAgreement). The step is then saved, without an evaluation that is not
  /// due. Equal on every rank.
  std::function<bool(int64_t step)> stop = nullptr;
  StepBoundary boundary = nullptr;  ///< called after all of these
  /// Lets exceptions of callbacks pass unchanged; the caller tells the other ranks, as run_job()
  /// does.
  bool exceptions_pass = false;
};

/// Training loop over one attached Strategy. Device values are read one step late, so the host
/// never waits for the step just issued. A report arrives while the next step runs, the last one
/// before fit() returns.
class Trainer {
 public:
  /// The strategy is attached and outlives the trainer.
  Trainer(Strategy& strategy, const TrainerOptions& options);
  ~Trainer();

  /// Trains until max_steps, the end of the source, or a boundary that returns false; returns the
  /// number of steps of this call. on_step may throw to stop. Logs a warning if the schedule ends
  /// before max_steps. A step that throws counts as not made if the strategy can continue.
  int64_t fit(const BatchSource& source, const std::function<void(const StepReport&)>& on_step,
              const StepBoundary& boundary = {});
  /// fit() with callbacks. Throws Error(kInvalidArgument) for evaluate_every or early stopping
  /// without an evaluation, and for save_every without on_save.
  int64_t fit(const BatchSource& source, const FitOptions& options);
  /// The average of TrainerOptions::average_decay, which starts with the weights at construction;
  /// null: none.
  WeightAverage* average() { return average_.get(); }
  /// Strategy::state() with the average's, for checkpoints.
  std::vector<StateTensor> strategy_state();
  /// Evaluates the whole source without gradients; the micro-batches of one call run together.
  EvalReport evaluate(const BatchSource& source);
  /// Evaluates the average, if there is one.
  EvalReport evaluate_average(const BatchSource& source);
  /// Adds a metric for reduce_lr_on_plateau, such as an evaluation's loss (less is better), equal
  /// on every rank; other schedules ignore it.
  void observe(double metric);

  /// Report of the step issued last, at a boundary; on the CPU it is complete.
  const StepReport& latest() const;

  /// State after the steps issued so far; inside fit() only at a boundary. Waits for the last step.
  TrainerState state();
  /// Continues from a state, before the first step. Ignores a loss scale or plateau rate that this
  /// run does not use.
  void restore(const TrainerState& state);

 private:
  struct Pending;
  class Fit;  ///< one call of fit() between steps
  /// Reads the previous step; skips the update if that one was a skipped step too many.
  void issue_step(const std::vector<MicroBatch>& micro_batches, Pending& pending);
  const StepReport& finish_step();
  double learning_rate();
  void begin_clock();  ///< excludes earlier time from the next step
  [[noreturn]] void stop_for_numerics(const StepReport& last);

  Strategy& strategy_;
  TrainerOptions options_;
  PhaseClock clock_;
  LossScaler scaler_;
  PlateauRate plateau_;
  std::function<void(int64_t step)> on_gradients_;  ///< during fit()
  std::optional<EarlyStopping> early_stopping_;
  std::optional<EarlyStopping::State> stopping_restored_;
  std::unique_ptr<WeightAverage> average_;
  std::unique_ptr<Pending> pending_;  ///< the latest issued step, until reported
  StepReport latest_;                 ///< the latest reported step
  int64_t steps_ = 0, updates_ = 0, skipped_in_a_row_ = 0;
  bool said_schedule_ends_ = false, said_no_target_ = false;
  bool diverged_ = false;  ///< whether the latest read step exceeded the limit of skipped steps
  double last_end_s_ = 0;
};

}  // namespace tessera
