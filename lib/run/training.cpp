// SPDX-License-Identifier: MIT
#include "lib/run/training.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "lib/core/clock.h"
#include "lib/run/adapters.h"
#include "lib/settings/layout.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

constexpr int64_t kStepsUntilFull = 2;  // peak memory is reached after two steps

double metric_of(const metrics::EvalRecord& record, const std::string& name) {
  return metrics::to_event(record).number("eval_" + name).value_or(0);
}

}  // namespace

Training::Training(const RunContext& run, RunParts& parts, RunReport& report)
    : run_(run), options_(run.options()), parts_(parts), report_(report), agreement_(run.world) {}

bool Training::run() {
  parts_.trainer->fit([&] { return next_batches(); }, fit_options());
  end_steps();
  if (stopping_) return stop();
  if (parts_.writer) report_.checkpoints(parts_.writer->wait());
  const auto& best = parts_.best;
  if (options_.output.load_best_model_at_end && best && best->step != parts_.steps) {
    load_best({.step = *best, .run = parts_.id, .resumed = parts_.resumed}, options_, run_.world,
              *parts_.strategy);
  }
  return false;
}

// Intervals of 0 steps are epochs of the data.
FitOptions Training::fit_options() {
  const OutputOptions& output = options_.output;
  const auto every = [&](int64_t steps) {
    return steps == 0 ? parts_.batches->steps_per_epoch() : steps;
  };
  const auto from = [&](int64_t steps) { return steps == 0 ? parts_.data_begun : 0; };
  FitOptions fit{.on_step =
                     [&](const StepReport& report) {
                       parts_.steps = report.step;
                       report_.step(report);
                     },
                 .stop =
                     [&](int64_t) {
                       between_steps();
                       return asked_to_stop();
                     },
                 .exceptions_pass = true};
  if (run_.task.validation_rows() > 0 && !output.eval_steps.is_never()) {
    const int64_t steps = output.eval_steps.of(parts_.total_steps);
    fit.evaluate_every = every(steps);
    fit.evaluate_from = from(steps);
    fit.evaluation = [&] { return begin_evaluation(); };
    fit.on_evaluation = [&](int64_t, const EvalReport& report) { end_evaluation(report); };
  }
  if (output.save_strategy != SaveStrategy::kNo) {
    const bool by_epoch = output.save_strategy == SaveStrategy::kEpoch;
    const int64_t steps = by_epoch ? 0 : output.save_steps.of(parts_.total_steps);
    fit.save_every = every(steps);
    fit.save_from = from(steps);
    fit.on_save = [&](int64_t) {
      end_steps();
      save();
    };
  }
  return fit;
}

std::vector<MicroBatch> Training::next_batches() {
  if (!std::exchange(in_steps_, true)) report_.memory().begin(Activity::kSteps);
  std::vector<MicroBatch> micro_batches = parts_.batches->next();
  if (parts_.communication_check) expect_operations_of(micro_batches);
  report_.step_begins(micro_batches);
  return micro_batches;
}

void Training::end_steps() {
  if (!std::exchange(in_steps_, false)) return;
  report_.steps_end();
  report_.memory().end();
}

void Training::expect_operations_of(const std::vector<MicroBatch>& micro_batches) {
  const MeshExtents mesh = mesh_extents(options_, run_.world.size());
  parts_.communication_check->step_begins({.model = run_.task.model(),
                                           .parallel = parts_.parallel,
                                           .optimizer = run_.task.optimizer(),
                                           .mesh = mesh,
                                           .coordinate = coordinate_of(run_.world.rank(), mesh),
                                           .micro_batches = micro_batches,
                                           .device = run_.world.device().type()});
}

void Training::check_operations() {
  const auto own = parts_.communication_check->step_ends();
  if (!own) return;
  const auto count = static_cast<int64_t>(*own);
  const int64_t most = largest_over_ranks(run_.control, {count}).front();
  if (!run_.reports()) return;
  log(LogLevel::kInfo, "communication check: every rank's operations in the first step (", most,
      " at most) are those of a dry run");
}

void Training::between_steps() {
  if (parts_.communication_check) check_operations();
  report_.between_steps(parts_.trainer->latest());
  if (!parts_.writer) return;
  if (++steps_here_ == kStepsUntilFull) {
    parts_.writer->reserve(state_of_run(*parts_.strategy, options_));
  }
  report_.checkpoints(parts_.writer->poll());
}

bool Training::asked_to_stop() {
  const StopSignals* signals = run_.signals;
  stopping_ = signals != nullptr && agreement_.agree(signals->caught() != 0);
  return stopping_;
}

BatchSource Training::begin_evaluation() {
  end_steps();
  validation_ = run_.task.steps(parts_.mesh->axis(Axis::kData), Strategy::Pass::kEvaluation);
  report_.memory().begin(Activity::kEvaluation);
  return [&, left = validation_->steps_per_epoch()]() mutable -> std::vector<MicroBatch> {
    if (left == 0) return {};
    --left;
    std::vector<MicroBatch> micro_batches = validation_->next();
    report_.memory().next(micro_batches);
    return micro_batches;
  };
}

void Training::end_evaluation(const EvalReport& report) {
  RunMemory& memory = report_.memory();
  memory.end();
  metrics::EvalRecord record;
  record.step = parts_.steps;
  record.epoch = parts_.epoch();
  record.eval_loss = report.loss;
  record.samples = run_.task.validation_rows();
  record.steps = validation_->steps_per_epoch();
  validation_.reset();
  const double begun = now_s();
  const RunTask::Predictions predictions =
      run_.task.score(record, report, *parts_.strategy, *parts_.mesh, memory);
  record.eval_runtime_s = report.time_s + (now_s() - begun);
  evaluated_ = {.step = parts_.steps,
                .metric = metric_of(record, options_.output.metric_for_best_model)};
  if (run_.reports() && predictions && (!options_.output.load_best_model_at_end || is_best())) {
    predictions(options_.output.output_dir);
  }
  report_.evaluation(record);
}

bool Training::is_best() const {
  return is_better(*evaluated_, parts_.best,
                   /*less=*/options_.output.metric_for_best_model == "loss");
}

// Before a checkpoint is written: updates the best evaluation.
void Training::note_best() {
  if (!evaluated_ || evaluated_->step != parts_.steps) return;
  if (is_best()) parts_.best = evaluated_;
  if (options_.output.load_best_model_at_end && parts_.best) parts_.writer->keep(parts_.best->step);
}

void Training::save() {
  note_best();
  const RunState state{.trainer = parts_.trainer->state(),
                       .data = parts_.batches->state(),
                       .of = run_.task.data_identity(parts_.batches->global_batch_size()),
                       .evaluation = run_.task.evaluation_identity(),
                       .best = parts_.best,
                       .id = parts_.id,
                       .fp8_layers = parts_.fp8_layers,
                       .settings = run_.flags.config_json(/*indent=*/0),
                       .model = run_.task.model_config(),
                       .names = run_.task.stored_names(),
                       .adapter = run_.task.adapter() ? run_.task.adapter()->to_json() : "",
                       .base = run_.task.base()};
  parts_.writer->save(parts_.steps, state_of_run(*parts_.strategy, options_), state.to_json());
  report_.checkpoints(parts_.writer->poll());
}

// A person pressed Ctrl-C: no launcher may restart the run.
bool Training::stop() {
  if (parts_.writer) report_.checkpoints(parts_.writer->wait());
  const auto caught = run_.control.exchange(std::to_string(run_.signals->caught()));
  const bool interrupted = std::ranges::count(caught, std::to_string(SIGINT)) > 0;
  if (!interrupted) fail(ErrorCode::kPreempted, how_it_stopped("a signal"));
  return true;
}

std::string Training::how_it_stopped(const char* by) const {
  return concat("stopped by ", by, " after step ", parts_.steps, " of ", parts_.total_steps,
                parts_.writer
                    ? "; the checkpoint is complete, --resume_from_checkpoint auto goes on from it"
                    : "; nothing was saved (--save_strategy no)");
}

}  // namespace tessera::programs
