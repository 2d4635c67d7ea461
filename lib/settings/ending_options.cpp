// SPDX-License-Identifier: MIT
// How a run ends and what it keeps: checkpoints, signals, numbers that are none.
#include "lib/settings/require.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// The best checkpoint is one of those whose step was evaluated.
void check_best(const TrainOptions& o, Program program) {
  const std::string& metric = o.output.metric_for_best_model;
  const bool of_answers = metric == "f1" || metric == "exact_match";
  require(metric == "loss" || of_answers || program == Program::kClassification,
          "--metric_for_best_model ", metric, " is known of classification only; use loss");
  require(metric != "f1" || program != Program::kChat,
          "--metric_for_best_model f1 is known of tessera-finetune-squad only; use exact_match");
  require(!of_answers || o.output.generation, "--metric_for_best_model ", metric,
          " needs --generation (tessera-finetune-squad and -chat); of classification use accuracy, "
          "f1_macro "
          "or f1_weighted");
  require(!metric.starts_with("f1_") || o.output.predictions, "--metric_for_best_model ", metric,
          " needs --predictions true");
  if (!o.output.load_best_model_at_end) return;
  const StepInterval &evaluates = o.output.eval_steps, &saves = o.output.save_steps;
  const bool by_epoch = o.output.save_strategy == SaveStrategy::kEpoch;
  const bool by_steps = o.output.save_strategy == SaveStrategy::kSteps;
  const bool counted = evaluates.share == 0 && saves.share == 0;  // else check_steps_of_best()
  const bool together =
      by_epoch
          ? evaluates.share == 0 && evaluates.steps == 0
          : by_steps && (!counted || (evaluates.steps > 0 && saves.steps % evaluates.steps == 0));
  require(may_evaluate(o, program) && together,
          "--load_best_model_at_end needs --validation_file and an evaluation at every checkpoint: "
          "--save_strategy epoch and --eval_steps 0, or --save_strategy steps with --save_steps a "
          "multiple of --eval_steps");
}

}  // namespace

void check_steps_of_best(const TrainOptions& o, int64_t all_steps) {
  if (!o.output.load_best_model_at_end || o.output.save_strategy != SaveStrategy::kSteps) return;
  const int64_t evaluates = o.output.eval_steps.of(all_steps),
                saves = o.output.save_steps.of(all_steps);
  require(evaluates > 0 && saves % evaluates == 0,
          "--load_best_model_at_end needs an evaluation at every checkpoint: ", all_steps,
          " steps are saved every ", saves, " (--save_steps) and evaluated every ", evaluates,
          " (--eval_steps); give numbers of steps of which the first is a multiple of the second");
}

void validate_ending(const TrainOptions& o, Program program) {
  require(!o.run.resume_from_checkpoint.empty(),
          "give --resume_from_checkpoint auto, PATH or none");
  check_best(o, program);
}

}  // namespace tessera::programs
