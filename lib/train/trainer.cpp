// SPDX-License-Identifier: MIT
#include "tessera/train/trainer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/core/clock.h"
#include "lib/ops/update.h"
#include "lib/train/pending_step.h"
#include "tessera/core/async_scalars.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

std::vector<MicroBatch> to_device(const std::vector<MicroBatch>& micro_batches, at::Device device) {
  const CopyScope copies(current_stream(device));
  std::vector<MicroBatch> moved;
  for (const auto& micro_batch : micro_batches) moved.push_back(micro_batch.to(device));
  return moved;
}

}  // namespace

Trainer::Trainer(Strategy& strategy, const TrainerOptions& options)
    : strategy_(strategy),
      options_(options),
      clock_(options.device),
      scaler_(options.loss_scaler, options.device),
      plateau_(options.schedule.peak, options.schedule.options) {
  options.schedule.validate();
  if (options.schedule.total_steps == 0) options_.schedule.total_steps = options.max_steps;
  for (const auto& [name, limit] : {std::pair{"max_nonfinite_steps", options.max_nonfinite_steps},
                                    std::pair{"max_overflow_steps", options.max_overflow_steps}}) {
    check(limit >= 1, ErrorCode::kInvalidArgument, name, " is ", limit, "; it must be at least 1");
  }
  check(options.max_grad_norm >= 0, ErrorCode::kInvalidArgument, "max_grad_norm is ",
        options.max_grad_norm, "; it must be positive, or 0 for no clipping");
  check(
      !options.learning_rate || options.schedule.kind != LrScheduleKind::kReduceOnPlateau,
      ErrorCode::kInvalidArgument,
      "TrainerOptions: learning_rate stands in place of the schedule, and reduce_lr_on_plateau was "
      "given, too; give one of them");
  if (scaler_.enabled()) strategy_.set_loss_scale(scaler_.scale());
  if (options.average_decay != 0) {
    average_ = std::make_unique<WeightAverage>(strategy, options.average_decay);
  }
}

Trainer::~Trainer() = default;

void Trainer::issue_step(const std::vector<MicroBatch>& micro_batches, Pending& pending) {
  StepReport& report = pending.report;
  const StepResult result = strategy_.forward_backward(to_device(micro_batches, options_.device));
  const at::Tensor scale = scaler_.scale().clone();
  if (on_gradients_) on_gradients_(report.step);
  const auto [norm, clip, factor, found_inf] =
      ops::clipping(strategy_.grad_norm_squared(), scale, options_.max_grad_norm);
  strategy_.scale_gradients(factor);
  // The schedule counts updates made, so this needs to know whether the previous step was skipped.
  // Its values were copied a whole forward and backward ago.
  if (pending_ != nullptr) finish_step();
  if (diverged_) return;
  report.learning_rate = learning_rate();
  if (options_.before_update) options_.before_update();
  strategy_.optimizer_step(report.learning_rate, found_inf);
  if (average_) average_->update(found_inf);
  scaler_.update(found_inf);
  pending.values.emplace(std::vector<at::Tensor>{result.loss, norm, clip, scale, found_inf,
                                                 result.target_count, result.sample_count,
                                                 result.token_count});
  if (result.counters.numel() > 0) pending.counters.emplace(result.counters);
  clock_.end_step();
}

const StepReport& Trainer::finish_step() {
  StepReport& report = pending_->report;
  if (!pending_->values) return report;
  const std::vector<double> values = pending_->values->read();
  pending_->values.reset();
  if (pending_->counters) report.counters = pending_->counters->read();
  pending_->counters.reset();
  strategy_.require_connected();
  report.phases = clock_.read();
  report.loss = values[0];
  report.grad_norm = values[1];
  report.clip_coefficient = values[2];
  report.loss_scale = values[3];
  report.skipped = values[4] != 0;
  report.target_count = values[5];
  report.samples = static_cast<int64_t>(values[6]);
  report.tokens = static_cast<int64_t>(values[7]);
  if (report.target_count == 0 && !std::exchange(said_no_target_, true) && log_rank() <= 0) {
    log(LogLevel::kWarning, "step ", report.step,
        " had no target: its loss of 0 says nothing, and its gradient is 0; later steps like it "
        "are not said");
  }
  const double end = now_s();
  // The host may read this long after the device finished.
  const bool by_device = report.phases && report.phases->since_last_end_s;
  report.step_time_s = by_device ? *report.phases->since_last_end_s : end - last_end_s_;
  last_end_s_ = end;
  updates_ += report.skipped ? 0 : 1;
  skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
  const int64_t most =
      scaler_.enabled() ? options_.max_overflow_steps : options_.max_nonfinite_steps;
  diverged_ = report.skipped && (skipped_in_a_row_ >= most || scaler_.exhausted(report.loss_scale));
  return report;
}

const StepReport& Trainer::latest() const {
  return pending_ != nullptr ? pending_->report : latest_;
}

double Trainer::learning_rate() {
  if (options_.learning_rate) return options_.learning_rate(updates_);
  const LrSchedule& schedule = options_.schedule;
  if (schedule.kind == LrScheduleKind::kReduceOnPlateau) return plateau_.rate();
  const auto end = schedule.end();
  const int64_t run = options_.max_steps > 0 ? options_.max_steps : updates_ + 1;
  if (end && *end < run && !std::exchange(said_schedule_ends_, true) && log_rank() <= 0) {
    log(LogLevel::kWarning, "the learning rate's schedule ends after ", *end,
        " updates with a rate of ", schedule.at(*end), ", but the run goes on",
        options_.max_steps > 0 ? concat(" to step ", options_.max_steps) : std::string(),
        "; leave out the schedule's own number of steps, or make the run as short");
  }
  return schedule.at(updates_);
}

void Trainer::observe(double metric) { plateau_.observe(metric); }

TrainerState Trainer::state() {
  if (pending_ != nullptr) finish_step();
  TrainerState state{.steps = steps_, .updates = updates_, .skipped_in_a_row = skipped_in_a_row_};
  if (scaler_.enabled()) state.loss_scaler = scaler_.state();
  if (options_.schedule.kind == LrScheduleKind::kReduceOnPlateau) state.plateau = plateau_.state();
  if (early_stopping_) state.early_stopping = early_stopping_->state();
  return state;
}

void Trainer::restore(const TrainerState& state) {
  check(steps_ == 0, ErrorCode::kInternal, "Trainer::restore() after ", steps_, " steps");
  steps_ = state.steps;
  updates_ = state.updates;
  skipped_in_a_row_ = state.skipped_in_a_row;
  if (scaler_.enabled() && state.loss_scaler) scaler_.restore(*state.loss_scaler);
  if (state.plateau) plateau_.restore(*state.plateau);
  stopping_restored_ = state.early_stopping;
}

void Trainer::stop_for_numerics(const StepReport& last) {
  std::string first, largest;
  double most = 0;
  strategy_.visit_gradients([&](const VisitedParameter& gradient) {
    if (!first.empty() || gradient.value.numel() == 0) return;
    const auto size = gradient.value.abs().max().item<double>();  // NaN if any element is
    const std::string name = gradient.block + "." + gradient.name;
    if (!std::isfinite(size)) {
      first = name;
    } else if (size >= most) {
      largest = concat("none, the largest value is ", size, " in ", name);
      most = size;
    }
  });
  const std::string row =
      skipped_in_a_row_ > 1 ? concat(", the last of ", skipped_in_a_row_, " in a row") : "";
  const std::string scale =
      scaler_.exhausted(last.loss_scale)
          ? concat(". The loss scale cannot fall below ", last.loss_scale,
                   " unless a smaller one is allowed (min_scale, --min_loss_scale)")
          : "";
  fail(ErrorCode::kNumerics, "the gradient norm of step ", last.step, " was not finite", row,
       "; first non-finite tensor: ", first.empty() ? largest : first, scale,
       ". Lower the learning rate or warm up for longer",
       scaler_.enabled() ? ", or train in bf16 or fp32" : "");
}

EvalReport Trainer::evaluate(const BatchSource& source) {
  const double begin = now_s();
  const InPhase phase("evaluation");
  EvalReport report;
  double loss_sum = 0;
  int64_t batches = 0;
  for (auto micro_batches = source(); !micro_batches.empty(); micro_batches = source()) {
    const StepResult result = strategy_.evaluate(to_device(micro_batches, options_.device));
    const std::vector<double> values = AsyncScalars({result.loss, result.target_count}).read();
    std::vector<double> counters;
    if (result.counters.numel() > 0) counters = AsyncScalars(result.counters).read();
    strategy_.require_connected();
    loss_sum += values[0] * values[1];
    report.target_count += values[1];
    report.counters.resize(counters.size());
    for (size_t i = 0; i < counters.size(); ++i) report.counters[i] += counters[i];
    for (const auto& micro_batch : micro_batches) report.samples += micro_batch.sample_count;
    ++batches;
  }
  strategy_.end_of_data(Strategy::Pass::kEvaluation, batches);
  const bool measured = report.target_count > 0;
  report.loss =
      measured ? loss_sum / report.target_count : std::numeric_limits<double>::quiet_NaN();
  if (!measured && log_rank() <= 0) {
    log(LogLevel::kWarning, "the evaluation after step ", steps_,
        " had no target, so its loss is not a number, and nothing follows it");
  }
  report.time_s = now_s() - begin;
  return report;
}

}  // namespace tessera
