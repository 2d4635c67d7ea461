// SPDX-License-Identifier: MIT
// Options of a run's end and outputs: checkpoints, signals, NaN.
#include <string>
#include <vector>

#include "lib/core/joined.h"
#include "lib/settings/require.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// Missing options of a run that loads its best checkpoint at the end.
std::vector<std::string> what_best_lacks(const TrainOptions& o, Program program) {
  std::vector<std::string> missing;
  const StepInterval &eval_steps = o.output.eval_steps, &save_steps = o.output.save_steps;
  const bool shares = eval_steps.share > 0 || save_steps.share > 0;  // see check_steps_of_best()
  const int64_t every = eval_steps.share > 0 ? 1 : eval_steps.steps, save = save_steps.steps;
  const std::string written = name_of(eval_steps);
  const bool file = !o.data.validation_file.empty() || !o.data.validation_ids.empty();
  const bool evaluates = file || program == Program::kOwn;  // otherwise --eval_steps is not read
  if (!evaluates) missing.emplace_back("--validation_file FILE");
  switch (o.output.save_strategy) {
    case SaveStrategy::kNo:
      missing.push_back(every > 0 ? concat("--save_strategy steps --save_steps N, a multiple of ",
                                           "--eval_steps ", written)
                                  : "--save_strategy epoch");
      if (every < 0)
        missing.emplace_back("--eval_steps 0, an evaluation at each of its checkpoints");
      break;
    case SaveStrategy::kEpoch:
      if (evaluates && every != 0) {
        missing.push_back(
            concat("--eval_steps 0, an evaluation at each checkpoint of "
                   "--save_strategy epoch; it is ",
                   written));
      }
      break;
    case SaveStrategy::kSteps:
      if (!evaluates) break;
      if (every <= 0) {
        missing.push_back(concat("--eval_steps N, of which --save_steps ", name_of(save_steps),
                                 " is a multiple; it is ", written));
      } else if (!shares && save % every != 0) {
        missing.push_back(concat("an evaluation at every checkpoint, and --save_steps ", save,
                                 " is no multiple of --eval_steps ", every));
      }
      break;
  }
  return missing;
}

// The best checkpoint is one whose step was evaluated.
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
  const std::string missing = joined(what_best_lacks(o, program), "; ");
  require(missing.empty(), "--load_best_model_at_end needs ", missing);
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
