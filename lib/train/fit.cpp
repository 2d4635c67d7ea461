// SPDX-License-Identifier: MIT
// Trainer::fit(): steps and callbacks.
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/core/clock.h"
#include "lib/train/pending_step.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void validate(const FitOptions& options) {
  const auto require = [](bool given, const char* what, const char* needed) {
    check(given, ErrorCode::kInvalidArgument, "FitOptions: ", what, " needs ", needed);
  };
  for (const auto& [name, every] : {std::pair{"evaluate_every", options.evaluate_every},
                                    std::pair{"save_every", options.save_every}}) {
    check(every >= 0, ErrorCode::kInvalidArgument, "FitOptions: ", name, " is ", every,
          "; it must be a number of steps, or 0 for never");
  }
  require(options.evaluate_every == 0 || options.evaluation != nullptr, "evaluate_every",
          "an evaluation, which makes a source of the rows to evaluate");
  require(!options.early_stopping || options.evaluate_every > 0, "early_stopping",
          "evaluate_every, whose losses it follows");
  require(options.save_every == 0 || options.on_save != nullptr, "save_every",
          "on_save, which saves");
}

}  // namespace

// [Note: a callback that throws]
// Other ranks do not know of the exception and continue to collectives that this rank never joins.
// So it sends them the reason first.
class Trainer::Fit {
 public:
  Fit(Trainer& trainer, const FitOptions& options)
      : trainer_(trainer), options_(options), evaluated_(trainer.steps_), saved_(trainer.steps_) {
    if (!options.on_gradients) return;
    trainer.on_gradients_ = [this](int64_t step) {
      call("on_gradients", step, [&] { options_.on_gradients(step); });
    };
  }
  ~Fit() { trainer_.on_gradients_ = nullptr; }
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  void report(const StepReport& step) {
    if (options_.on_step) call("on_step", step.step, [&] { options_.on_step(step); });
  }

  // Returns whether to continue.
  bool between_steps(int64_t step) {
    bool stopped = false;
    if (options_.stop) call("stop", step, [&] { stopped = options_.stop(step); });
    const bool is_last = step == trainer_.options_.max_steps;
    const auto is_due = [&](int64_t every, int64_t from) {
      return every > 0 && (is_last || (step > from && (step - from) % every == 0));
    };
    if (is_due(options_.evaluate_every, options_.evaluate_from)) evaluate(step);
    if (is_due(options_.save_every, options_.save_from) || (stopped && options_.on_save)) {
      save(step);
    }
    if (stopped) {
      ends_here_ = true;
      return false;
    }
    bool goes_on = true;
    if (options_.boundary) goes_on = options_.boundary(step);
    return goes_on && !stops_;
  }

  // After the last step, whatever ended the loop.
  void end() {
    report_all();
    if (ends_here_) return;
    const int64_t step = trainer_.steps_;
    if (options_.evaluate_every > 0 && evaluated_ < step) evaluate(step);
    if (options_.save_every > 0 && saved_ < step) save(step);
  }

 private:
  template <typename Fn>
  void call(const char* callback, int64_t step, const Fn& fn) {
    if (options_.exceptions_pass) return fn();
    const auto told = [&](const char* what) {
      const std::string why =
          concat("the callback ", callback, " threw at step ", step, ": ", what);
      trainer_.strategy_.give_up(why);
      return why;
    };
    try {
      fn();
    } catch (const Error& error) {
      throw Error(error.code(), told(error.what()));
    } catch (const std::exception& error) {
      told(error.what());
      throw;
    } catch (...) {
      told("something that is no std::exception");
      throw;
    }
  }

  void report_all() {
    if (trainer_.pending_ == nullptr) return;
    const StepReport& last = trainer_.latest_ = trainer_.finish_step();
    trainer_.pending_.reset();
    report(last);
    if (trainer_.diverged_) trainer_.stop_for_numerics(last);
  }

  void evaluate(int64_t step) {
    report_all();
    evaluated_ = step;
    BatchSource rows;
    call("evaluation", step, [&] { rows = options_.evaluation(); });
    const EvalReport report = trainer_.evaluate_average(rows);
    const bool measured = report.target_count > 0;
    if (measured) trainer_.observe(report.loss);
    if (options_.on_evaluation) {
      call("on_evaluation", step, [&] { options_.on_evaluation(step, report); });
    }
    auto& early_stopping = trainer_.early_stopping_;
    stops_ = measured && early_stopping && options_.early_stopping &&
             early_stopping->observe(report.loss);
    trainer_.begin_clock();
  }

  void save(int64_t step) {
    report_all();
    saved_ = step;
    call("on_save", step, [&] { options_.on_save(step); });
    trainer_.begin_clock();
  }

  Trainer& trainer_;
  const FitOptions& options_;
  int64_t evaluated_, saved_;
  bool stops_ = false;      // by early stopping
  bool ends_here_ = false;  // by FitOptions::stop
};

int64_t Trainer::fit(const BatchSource& source,
                     const std::function<void(const StepReport&)>& on_step,
                     const StepBoundary& boundary) {
  return fit(source, {.on_step = on_step, .boundary = boundary, .exceptions_pass = true});
}

int64_t Trainer::fit(const BatchSource& source, const FitOptions& options) {
  validate(options);
  if (options.early_stopping && !early_stopping_) {
    early_stopping_.emplace(*options.early_stopping);
    if (stopping_restored_) early_stopping_->restore(*stopping_restored_);
  }
  Fit fit(*this, options);
  learning_rate();  // throws early if there is none
  begin_clock();
  int64_t made = 0;
  while (options_.max_steps == 0 || steps_ < options_.max_steps) {
    clock_.begin_step();
    note_step(steps_ + 1);
    const double wait_begin = now_s();
    const std::vector<MicroBatch> micro_batches = source();
    if (micro_batches.empty()) {
      clock_.drop_step();
      strategy_.end_of_data(Strategy::Pass::kTraining, steps_);
      break;
    }
    auto next = std::make_unique<Pending>();
    next->report.data_time_s = now_s() - wait_begin;
    next->report.step = steps_ + 1;
    issue_step(micro_batches, *next);
    ++steps_;
    ++made;
    // issue_step() has read the previous step, whose report is passed on while this one runs.
    if (pending_ != nullptr) fit.report(pending_->report);
    if (diverged_) stop_for_numerics(pending_->report);
    pending_ = std::move(next);
    // On the CPU the step is over; its time is not the next one's.
    if (options_.device.is_cpu()) finish_step();
    if (diverged_ || !fit.between_steps(steps_)) break;
  }
  fit.end();
  return made;
}

void Trainer::begin_clock() {
  last_end_s_ = now_s();
  clock_.begin_anew();
}

EvalReport Trainer::evaluate_average(const BatchSource& source) {
  if (average_ == nullptr) return evaluate(source);
  const WeightAverage::Swapped swapped(*average_);
  return evaluate(source);
}

std::vector<StateTensor> Trainer::strategy_state() {
  std::vector<StateTensor> state = strategy_.state();
  if (average_ == nullptr) return state;
  for (StateTensor& piece : average_->state()) state.push_back(std::move(piece));
  return state;
}

}  // namespace tessera
