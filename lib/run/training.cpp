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
  const int64_t per_epoch = parts_.batches->steps_per_epoch(), total = parts_.total_steps;
  const bool evaluates = run_.task.validation_rows() > 0 && !options_.output.eval_steps.is_never();
  const bool saves = options_.output.save_strategy != SaveStrategy::kNo;
  const bool saves_by_epoch = options_.output.save_strategy == SaveStrategy::kEpoch;
  const int64_t eval_steps = options_.output.eval_steps.of(total),
                save_steps = saves_by_epoch ? 0 : options_.output.save_steps.of(total);
  // Next multiple of the interval; 0 means epochs of the data.
  const auto end_of = [&](int64_t interval) {
    const int64_t begin = interval == 0 ? parts_.data_begun : 0,
                  every = interval == 0 ? per_epoch : interval;
    return std::min(total, begin + ((parts_.steps - begin) / every + 1) * every);
  };
  while (parts_.steps < total) {
    const int64_t to_evaluate = evaluates ? end_of(eval_steps) : total;
    const int64_t to_save = saves ? end_of(save_steps) : total;
    train_until(std::min(to_evaluate, to_save));
    if (evaluates && parts_.steps == to_evaluate) evaluate();
    if (saves && (parts_.steps == to_save || stopping_)) save();
    if (stopping_) return stop();
  }
  if (parts_.writer) report_.checkpoints(parts_.writer->wait());
  const auto& best = parts_.best;
  if (options_.output.load_best_model_at_end && best && best->step != parts_.steps) {
    load_best({.step = *best, .run = parts_.id, .resumed = parts_.resumed}, options_, run_.world,
              *parts_.strategy);
  }
  return false;
}

void Training::train_until(int64_t step) {
  int64_t issued = parts_.steps;
  report_.memory().begin(Activity::kSteps);
  parts_.trainer->fit(
      [&]() -> std::vector<MicroBatch> {
        if (issued == step) return {};
        ++issued;
        std::vector<MicroBatch> micro_batches = parts_.batches->next();
        if (parts_.communication_check) expect_operations_of(micro_batches);
        report_.step_begins(micro_batches);
        return micro_batches;
      },
      [&](const StepReport& report) {
        parts_.steps = report.step;
        report_.step(report);
      },
      [&](int64_t) { return between_steps(); });
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
  log(LogLevel::kInfo, "communication check: every rank's operations in the first step (",
      most, " at most) are those of a dry run");
}

bool Training::between_steps() {
  if (parts_.communication_check) check_operations();
  report_.between_steps(parts_.trainer->latest());
  if (parts_.writer) {
    if (++steps_here_ == kStepsUntilFull) {
      parts_.writer->reserve(state_of_run(*parts_.strategy, options_));
    }
    report_.checkpoints(parts_.writer->poll());
  }
  const StopSignals* signals = run_.signals;
  stopping_ = signals != nullptr && agreement_.agree(signals->caught() != 0);
  return !stopping_;
}

void Training::evaluate() {
  const auto batches = run_.task.steps(parts_.mesh->axis(Axis::kData), Strategy::Pass::kEvaluation);
  int64_t left = batches->steps_per_epoch();
  RunMemory& memory = report_.memory();
  memory.begin(Activity::kEvaluation);
  const EvalReport report = parts_.trainer->evaluate([&]() -> std::vector<MicroBatch> {
    if (left == 0) return {};
    --left;
    std::vector<MicroBatch> micro_batches = batches->next();
    memory.next(micro_batches);
    return micro_batches;
  });
  memory.end();
  if (report.target_count > 0) parts_.trainer->observe(report.loss);
  metrics::EvalRecord record;
  record.step = parts_.steps;
  record.epoch = parts_.epoch();
  record.eval_loss = report.loss;
  record.samples = run_.task.validation_rows();
  record.steps = batches->steps_per_epoch();
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
                       .settings = run_.flags.config_json(/*indent=*/0),
                       .model = run_.task.model_config(),
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
