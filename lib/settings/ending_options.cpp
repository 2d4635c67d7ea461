// SPDX-License-Identifier: MIT
// How a run ends and what it keeps: checkpoints, signals, numbers that are none.
#include <string>
#include <vector>

#include "lib/core/joined.h"
#include "lib/settings/require.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// Of a run that is to end with its best checkpoint.
std::vector<std::string> what_best_lacks(const TrainOptions& o, Program program) {
  std::vector<std::string> missing;
  const int64_t every = o.output.eval_steps, save = o.output.save_steps;
  const bool file = !o.data.validation_file.empty() || !o.data.validation_ids.empty();
  const bool evaluates = file || program == Program::kOwn;  // else --eval_steps is not read
  if (!evaluates) missing.emplace_back("--validation_file FILE");
  switch (o.output.save_strategy) {
    case SaveStrategy::kNo:
      missing.push_back(every > 0 ? concat("--save_strategy steps --save_steps N, a multiple of ",
                                           "--eval_steps ", every)
                                  : "--save_strategy epoch");
      if (every < 0)
        missing.emplace_back("--eval_steps 0, an evaluation at each of its checkpoints");
      break;
    case SaveStrategy::kEpoch:
      if (evaluates && every != 0) {
        missing.push_back(
            concat("--eval_steps 0, an evaluation at each checkpoint of "
                   "--save_strategy epoch; it is ",
                   every));
      }
      break;
    case SaveStrategy::kSteps:
      if (!evaluates) break;
      if (every <= 0) {
        missing.push_back(concat("--eval_steps N, of which --save_steps ", save,
                                 " is a multiple; it is ", every));
      } else if (save % every != 0) {
        missing.push_back(concat("an evaluation at every checkpoint, and --save_steps ", save,
                                 " is no multiple of --eval_steps ", every));
      }
      break;
  }
  return missing;
}

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
  const std::string missing = joined(what_best_lacks(o, program), "; ");
  require(missing.empty(), "--load_best_model_at_end needs ", missing);
}

}  // namespace

void validate_ending(const TrainOptions& o, Program program) {
  require(!o.run.resume_from_checkpoint.empty(),
          "give --resume_from_checkpoint auto, PATH or none");
  check_best(o, program);
}

}  // namespace tessera::programs
