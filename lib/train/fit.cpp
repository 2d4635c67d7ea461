// SPDX-License-Identifier: MIT
// Trainer::fit(): steps and callbacks.
#include "tessera/core/error.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

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
template <typename Fn>
void Trainer::call(const char* callback, int64_t step, const Fn& fn) {
  const auto told = [&](const char* what) {
    const std::string why = concat("the callback ", callback, " threw at step ", step, ": ", what);
    strategy_.give_up(why);
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

int64_t Trainer::fit(const BatchSource& source,
                     const std::function<void(const StepReport&)>& on_step,
                     const StepBoundary& boundary) {
  return steps_of(source, on_step, boundary);
}

int64_t Trainer::fit(const BatchSource& source, const FitOptions& options) {
  validate(options);
  if (options.early_stopping && !early_stopping_) {
    early_stopping_.emplace(*options.early_stopping);
    if (stopping_restored_) early_stopping_->restore(*stopping_restored_);
  }
  struct Reset {  // however the call ends
    std::function<void(int64_t)>& fn;
    ~Reset() { fn = nullptr; }
  } reset{on_gradients_};
  if (options.on_gradients) {
    on_gradients_ = [&](int64_t step) {
      call("on_gradients", step, [&] { options.on_gradients(step); });
    };
  }
  int64_t evaluated = steps_, saved = steps_;
  bool stops = false;
  const auto evaluate = [&](int64_t step) {
    evaluated = step;
    BatchSource rows;
    call("evaluation", step, [&] { rows = options.evaluation(); });
    const EvalReport report = evaluate_average(rows);
    const bool measured = report.target_count > 0;
    if (measured) observe(report.loss);
    if (options.on_evaluation) {
      call("on_evaluation", step, [&] { options.on_evaluation(step, report); });
    }
    stops = measured && early_stopping_ && options.early_stopping &&
            early_stopping_->observe(report.loss);
  };
  const auto save = [&](int64_t step) {
    saved = step;
    call("on_save", step, [&] { options.on_save(step); });
  };
  const auto on_step = [&](const StepReport& report) {
    if (options.on_step) call("on_step", report.step, [&] { options.on_step(report); });
  };
  const auto boundary = [&](int64_t step) {
    if (is_due(step, options.evaluate_every)) evaluate(step);
    if (is_due(step, options.save_every)) save(step);
    return (!options.boundary || options.boundary(step)) && !stops;
  };
  const int64_t made = steps_of(source, on_step, boundary);
  if (options.evaluate_every > 0 && evaluated < steps_) evaluate(steps_);
  if (options.save_every > 0 && saved < steps_) save(steps_);
  return made;
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
