// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The plain training loop: batch, forward and backward, clip, step, report. It knows nothing about
/// parallelism.
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

/// The micro-batches of this rank's next optimizer step; empty at the end of the data. Every rank's
/// source ends at the same step: else all throw Error(kDataLoss) with the ranks whose data ended.
using BatchSource = std::function<std::vector<MicroBatch>()>;

/// Called with a step's number once it is issued, before its report: the place to save, to evaluate
/// and to observe() between steps. Returns whether to go on, the same on every rank.
using StepBoundary = std::function<bool(int64_t step)>;

/// How fit() trains.
struct TrainerOptions {
  at::Device device = at::kCPU;  ///< where micro-batches are moved
  int64_t max_steps = 0;       ///< optimizer steps, skipped ones included; 0: until the source ends
  double max_grad_norm = 1.0;  ///< clip to this global norm; 0: no clipping
  LrSchedule schedule;         ///< with max_steps as total_steps where none are set
  /// The rate after so many updates, in place of the schedule: any function, the same on every
  /// rank.
  std::function<double(int64_t updates_done)> learning_rate = nullptr;
  /// Keeps a WeightAverage of this decay, which evaluations of fit() use; 0: none.
  double average_decay = 0;
  LossScalerConfig loss_scaler;  ///< enabled: losses are scaled, as fp16 needs
  /// Called before every update, when the step's forward and backward are issued.
  std::function<void()> before_update;
  /// Training stops with Error(kNumerics), which names the first non-finite gradient, after so many
  /// steps in a row whose gradient norm was not finite. Their updates are skipped. A loss scale
  /// falls until they end; without one nothing does.
  int64_t max_nonfinite_steps = 1;  ///< without a loss scaler
  int64_t max_overflow_steps = 20;  ///< with one
};

/// One optimizer step, the same on every rank but for the times, which are this rank's.
struct StepReport {
  int64_t step = 0;                  ///< from 1
  double loss = 0;                   ///< mean over the global batch's targets; 0: it has none
  double grad_norm = 0;              ///< before clipping, without loss scale
  double clip_coefficient = 1;       ///< what gradients were multiplied by; 1: not clipped
  double learning_rate = 0;          ///< of this step's update
  double loss_scale = 1;             ///< what the loss was multiplied by
  bool skipped = false;              ///< whether the weights stayed as they were
  double target_count = 0;           ///< of all ranks; see MicroBatch
  int64_t samples = 0, tokens = 0;   ///< of all ranks; see MicroBatch
  double step_time_s = 0;            ///< from the previous step's end to this one's
  double data_time_s = 0;            ///< waiting for the source
  std::optional<PhaseTimes> phases;  ///< of the device
};

/// One evaluation; the same on every rank but for what is this rank's.
struct EvalReport {
  double loss = 0;               ///< mean over the targets of all ranks; NaN: there was none
  double target_count = 0;       ///< of all ranks
  std::vector<double> counters;  ///< see Block
  int64_t samples = 0;           ///< this rank's
  double time_s = 0;             ///< seconds of this rank
};

/// What happens inside Trainer::fit() beside steps. Every rank gives the same, and all are called
/// at the same steps. An exception that leaves one on one rank ends all: that rank throws it, with
/// the callback and the step ahead of its words where it is an Error, and the others
/// Error(kUnavailable) with the rank and those words. To stop in order, return false from
/// `boundary`.
struct FitOptions {
  /// A step's report, one step late. Evaluations, saves and the end of fit() come behind the
  /// reports of all steps made so far.
  std::function<void(const StepReport&)> on_step = nullptr;
  /// Between backward and clipping: the place for Strategy::for_each_gradient() and the like.
  /// Gradients are loss-scaled.
  std::function<void(int64_t step)> on_gradients = nullptr;
  /// `evaluation` makes a source of the rows, which is evaluated every so many steps and after the
  /// last one; 0: never. Weights are the average where there is one
  /// (TrainerOptions::average_decay). The loss is observe()d, unless no row had a target.
  int64_t evaluate_every = 0;
  int64_t evaluate_from = 0;  ///< the step that evaluate_every counts from, e.g. an epoch's begin
  std::function<BatchSource()> evaluation = nullptr;  ///< see evaluate_every
  /// Called with each evaluation's report.
  std::function<void(int64_t step, const EvalReport&)> on_evaluation = nullptr;
  std::optional<EarlyStoppingConfig> early_stopping = std::nullopt;  ///< by the evaluations' losses
  /// Called every so many steps and after the last one, behind the evaluation; 0: never.
  int64_t save_every = 0;
  int64_t save_from = 0;                                ///< the step that save_every counts from
  std::function<void(int64_t step)> on_save = nullptr;  ///< see save_every
  /// Asked behind each step, before all of these: whether to stop for a reason from outside, such
  /// as a signal (StopAgreement). Then the step is saved, and no evaluation is made that is not
  /// due. The same on every rank.
  std::function<bool(int64_t step)> stop = nullptr;
  StepBoundary boundary = nullptr;  ///< behind all of these
  /// Exceptions of callbacks pass as they are: the caller tells the other ranks, as run_job() does.
  bool exceptions_pass = false;
};

/// Drives one attached Strategy. Device values are read one step late, so the host never waits for
/// the step it has just issued; a report therefore arrives while the next step runs, and the last
/// one before fit() returns.
class Trainer {
 public:
  /// The strategy is attached and outlives the trainer.
  Trainer(Strategy& strategy, const TrainerOptions& options);
  ~Trainer();

  /// Trains until max_steps, the end of the source, or a boundary that does not go on; returns the
  /// steps made by this call. on_step may throw to stop. A schedule that ends before max_steps is a
  /// warning. A step that throws counts as not made where the strategy can go on.
  int64_t fit(const BatchSource& source, const std::function<void(const StepReport&)>& on_step,
              const StepBoundary& boundary = {});
  /// The same with callbacks. Throws Error(kInvalidArgument) for an evaluate_every without an
  /// evaluation, early stopping without one, and a save_every without on_save.
  int64_t fit(const BatchSource& source, const FitOptions& options);
  /// Of TrainerOptions::average_decay; null: there is none. It begins with the weights at the
  /// trainer's making.
  WeightAverage* average() { return average_.get(); }
  /// Strategy::state(), with the average's where there is one: for checkpoints.
  std::vector<StateTensor> strategy_state();
  /// Runs the whole source without gradients; each call of the source gives micro-batches evaluated
  /// together.
  EvalReport evaluate(const BatchSource& source);
  EvalReport evaluate_average(const BatchSource& source);  ///< of the average where there is one
  /// What reduce_lr_on_plateau follows, such as an evaluation's loss (less is better), the same on
  /// every rank; other schedules do not look at it.
  void observe(double metric);

  /// Of the step issued last, at a boundary; on the CPU it is complete.
  const StepReport& latest() const;

  /// After the steps issued so far; inside fit() at a boundary. Waits for the last of them.
  TrainerState state();
  /// Before the first step. A scale and a plateau's rate that this run's options have no use for
  /// are left alone.
  void restore(const TrainerState& state);

 private:
  struct Pending;
  class Fit;  ///< what one call of fit() does between steps
  /// Reads the step before; updates nothing when that was one too many.
  void issue_step(const std::vector<MicroBatch>& micro_batches, Pending& pending);
  const StepReport& finish_step();
  double learning_rate();
  void begin_clock();  ///< what was before counts for no step
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
  std::unique_ptr<Pending> pending_;  ///< the step issued last, until it is reported
  StepReport latest_;                 ///< of the step reported last
  int64_t steps_ = 0, updates_ = 0, skipped_in_a_row_ = 0;
  bool said_schedule_ends_ = false, said_no_target_ = false;
  bool diverged_ = false;  ///< the step read last was one skipped too many
  double last_end_s_ = 0;
};

}  // namespace tessera
