// The steps of a run, with evaluations and checkpoints between them.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <utility>

#include "lib/core/clock.h"
#include "lib/metrics/statistics.h"
#include "lib/run/answers.h"
#include "lib/run/class_predictions.h"
#include "lib/run/device_memory.h"
#include "lib/run/layout.h"
#include "lib/run/step_flops.h"
#include "lib/run/training_run.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

constexpr double kUnknownWork = -1;
constexpr int64_t kStepsUntilFull = 2;  // then the device's memory is filled as it will be

double metric_of(const metrics::EvalRecord& record, const std::string& name) {
  return metrics::to_event(record).number("eval_" + name).value_or(0);
}

}  // namespace

double TrainingRun::epoch() const {
  return static_cast<double>(steps_ - data_begun_) /
         static_cast<double>(train_loader_->steps_per_epoch());
}

void TrainingRun::train() {
  batches_ = std::make_unique<BatchStream>(*train_loader_, world_.device());
  const int64_t per_epoch = train_loader_->steps_per_epoch();
  const bool evaluates = prepared_.validation.size() > 0 && options_.eval_steps >= 0;
  const bool saves = options_.save_strategy != "no";
  const bool saves_by_epoch = options_.save_strategy == "epoch";
  // 0: epochs of the data, else steps.
  const auto end_of = [&](int64_t interval) {
    const int64_t begin = interval == 0 ? data_begun_ : 0,
                  every = interval == 0 ? per_epoch : interval;
    return std::min(total_steps_, begin + ((steps_ - begin) / every + 1) * every);
  };
  while (steps_ < total_steps_) {
    const int64_t to_evaluate = evaluates ? end_of(options_.eval_steps) : total_steps_;
    const int64_t to_save = saves ? end_of(saves_by_epoch ? 0 : options_.save_steps) : total_steps_;
    train_until(std::min(to_evaluate, to_save));
    if (evaluates && steps_ == to_evaluate) evaluate();
    if (saves && (steps_ == to_save || stopping_)) save();
    if (stopping_) return stop();
  }
  if (writer_) record(writer_->wait());
  if (options_.load_best_model_at_end && best_ && best_->step != steps_) {
    load_best(*best_, world_, *strategy_);
  }
}

void TrainingRun::train_until(int64_t step) {
  int64_t issued = steps_;
  run_memory_->begin(Activity::kSteps);
  trainer_->fit(
      [&]() -> std::vector<MicroBatch> {
        if (issued == step) return {};
        ++issued;
        const int64_t sent_before = bytes_sent(*mesh_, *strategy_);
        std::vector<MicroBatch> micro_batches = batches_->next();
        issued_.push_back({sent_before, mean_row_length(micro_batches)});
        run_memory_->next(micro_batches);
        return micro_batches;
      },
      [&](const StepReport& report) { on_step(report); }, [&](int64_t) { return between_steps(); });
  if (held_) report_step(*std::exchange(held_, {}), rank_times_->read());
  run_memory_->end();
}

void TrainingRun::on_step(const StepReport& report) {
  steps_ = report.step;
  // Reports come one step late on GPUs: the next step may have begun to send.
  const Issued issued = issued_.front();
  issued_.pop_front();
  const int64_t sent =
      issued_.empty() ? bytes_sent(*mesh_, *strategy_) : issued_.front().sent_before;
  const DeviceMemory memory = run_memory_->device_peak();
  metrics::StepRecord r;
  r.step = report.step;
  r.epoch = epoch();
  r.loss = report.loss;
  r.learning_rate = report.learning_rate;
  r.grad_norm = report.grad_norm;
  r.clip_coefficient = report.clip_coefficient;
  if (options_.dtype == "fp16") r.loss_scale = report.loss_scale;
  r.skipped = report.skipped;
  r.step_time_s = report.step_time_s;
  r.data_time_s = report.data_time_s;
  r.samples = report.samples;
  r.tokens = report.tokens;
  r.supervised_tokens = static_cast<int64_t>(report.target_count);
  r.comm_bytes = sent - issued.sent_before;
  r.gpu_mem_allocated_bytes = memory.allocated_peak_bytes;
  r.gpu_mem_reserved_bytes = memory.reserved_peak_bytes;
  if (peak_flops_ > 0 && prepared_.model.flops_per_token && report.tokens > 0 &&
      r.step_time_s > 0) {
    const auto positions = static_cast<double>(report.tokens);
    const double flops =
        step_flops(prepared_.model, positions, report.target_count, issued.row_length);
    r.mfu_ratio = metrics::mfu_ratio(flops / positions, positions / r.step_time_s, peak_flops_,
                                     world_.size());
  }
  if (report.phases) {
    r.forward_s = report.phases->forward_s;
    r.backward_s = report.phases->backward_s;
    r.comm_exposed_s = report.phases->communication_s;
    r.optimizer_s = report.phases->optimizer_s;
    r.h2d_d2h_s = report.phases->copies_s;
  }
  if (!rank_times_ || world_.device().is_cpu()) {
    report_step(r, rank_times_ ? rank_times_->read() : std::vector<double>());
    return;
  }
  // What the ranks worked is known with the next step's report.
  if (held_) report_step(*held_, rank_times_->read());
  held_ = r;
  tell_work(report);
}

void TrainingRun::tell_work(const StepReport& step) {
  rank_times_->tell(step.phases ? step.phases->step_s - step.phases->communication_s
                                : kUnknownWork);
}

void TrainingRun::report_step(metrics::StepRecord record, const std::vector<double>& work_s) {
  if (!reports()) return;
  if (!work_s.empty() && !std::ranges::count(work_s, kUnknownWork)) {
    record.slowest_rank = std::ranges::max_element(work_s) - work_s.begin();
    note_straggler(work_s, record.step);
  }
  recorder_->step(record);
}

// Stages have unequal work: there the slowest one is the layout's.
void TrainingRun::note_straggler(const std::vector<double>& work_s, int64_t step) {
  if (mesh_->extent(Axis::kPipeline) > 1) return;
  const auto straggler = straggler_watch_.add(work_s);
  if (!straggler) return;
  recorder_->anomaly({.kind = "straggler",
                      .detail = concat("rank ", straggler->rank, " worked ", straggler->ratio,
                                       " times as long as the median of the others in step ", step,
                                       ", and was slow in the 9 before"),
                      .rank_culprit = straggler->rank});
}

void TrainingRun::evaluate() {
  Communicator& data = mesh_->axis(Axis::kData);
  const DataLoader loader(prepared_.validation, prepared_.loader_options(data, /*training=*/false));
  BatchStream batches(loader, world_.device());
  int64_t left = loader.steps_per_epoch();
  run_memory_->begin(Activity::kEvaluation);
  const EvalReport report = trainer_->evaluate([&]() -> std::vector<MicroBatch> {
    if (left == 0) return {};
    --left;
    std::vector<MicroBatch> micro_batches = batches.next();
    run_memory_->next(micro_batches);
    return micro_batches;
  });
  run_memory_->end();
  trainer_->observe(report.loss);
  metrics::EvalRecord record;
  record.step = steps_;
  record.epoch = epoch();
  record.eval_loss = report.loss;
  record.eval_runtime_s = report.time_s;
  record.samples = prepared_.validation.size();
  record.steps = loader.steps_per_epoch();
  if (prepared_.task == Task::kClassification && !report.counters.empty() &&
      report.target_count > 0) {
    record.eval_accuracy = report.counters[0] / report.target_count;
  }
  const Predictions predictions = score(record);
  evaluated_ = {.path = concat(options_.output_dir, "/checkpoint-", steps_),
                .step = steps_,
                .metric = metric_of(record, options_.metric_for_best_model)};
  if (!reports()) return;
  if (predictions && (!options_.load_best_model_at_end || is_best())) {
    predictions(options_.output_dir);
  }
  recorder_->eval(record);
}

TrainingRun::Predictions TrainingRun::score(metrics::EvalRecord& record) {
  const double begun = now_s();
  Predictions write;
  if (prepared_.questions) {
    run_memory_->begin(Activity::kGeneration);
    run_memory_->next(generation_shape(*prepared_.questions, *prepared_.tokenizer,
                                       prepared_.config(), options_, *mesh_));
    Answers answers = answer_questions(*prepared_.questions, *prepared_.tokenizer,
                                       prepared_.config(), options_, *strategy_, *mesh_);
    run_memory_->end();
    record.eval_exact_match = answers.scores.all.exact_match;
    record.eval_f1 = answers.scores.all.f1;
    write = [answers = std::move(answers)](const std::string& to) { answers.write(to); };
  } else if (prepared_.task == Task::kClassification && options_.predictions) {
    ClassPredictions predictions =
        predict_classes(prepared_.validation,
                        prepared_.loader_options(mesh_->axis(Axis::kData), /*training=*/false),
                        prepared_.config().labels, *strategy_, *mesh_);
    record.eval_f1_macro = predictions.scores.f1_macro;
    record.eval_f1_weighted = predictions.scores.f1_weighted;
    write = [predictions = std::move(predictions)](const std::string& to) {
      predictions.write(to);
    };
  }
  record.eval_runtime_s += now_s() - begun;
  return write;
}

bool TrainingRun::is_best() const {
  return is_better(*evaluated_, best_, /*less=*/options_.metric_for_best_model == "loss");
}

// Before a checkpoint is written: whether it will be the best one.
void TrainingRun::note_best() {
  if (!evaluated_ || evaluated_->step != steps_) return;
  if (is_best()) best_ = evaluated_;
  if (options_.load_best_model_at_end && best_) writer_->keep(best_->step);
}

void TrainingRun::save() {
  note_best();
  const RunState run{.trainer = trainer_->state(),
                     .data = batches_->state(),
                     .of = data_identity(prepared_, train_loader_->global_batch_size()),
                     .best = best_,
                     .settings = flags_.config_json(/*indent=*/0),
                     .model = prepared_.language_model.to_json(prepared_.head())};
  writer_->save(steps_, strategy_->state(), run.to_json());
  record(writer_->poll());
}

bool TrainingRun::between_steps() {
  if (rank_times_ && world_.device().is_cpu()) tell_work(trainer_->latest());
  if (writer_) {
    if (++steps_here_ == kStepsUntilFull) writer_->reserve(strategy_->state());
    record(writer_->poll());
  }
  stopping_ = signals_ != nullptr && agreement_.agree(signals_->caught() != 0);
  return !stopping_;
}

void TrainingRun::record(const std::vector<SavedCheckpoint>& saved) {
  if (!reports()) return;
  for (const SavedCheckpoint& one : saved) {
    recorder_->checkpoint({.path = one.path,
                           .bytes = one.bytes,
                           .write_s = one.write_s,
                           .stall_s = one.stall_s,
                           .waited_s = one.waited_s});
  }
}

// Ctrl-C is a person's: nothing may start the run again for it.
void TrainingRun::stop() {
  if (writer_) record(writer_->wait());
  const auto caught = control_.exchange(std::to_string(signals_->caught()));
  interrupted_ = std::ranges::count(caught, std::to_string(SIGINT)) > 0;
  if (!interrupted_) fail(ErrorCode::kPreempted, how_it_stopped("a signal"));
}

std::string TrainingRun::how_it_stopped(const char* by) const {
  return concat("stopped by ", by, " after step ", steps_, " of ", total_steps_,
                writer_
                    ? "; the checkpoint is complete, --resume_from_checkpoint auto goes on from it"
                    : "; nothing was saved (--save_strategy no)");
}

}  // namespace tessera::programs
