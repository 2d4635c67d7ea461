// SPDX-License-Identifier: MIT
#include "lib/settings/table.h"

namespace tessera::settings::rows {
namespace {

using Out = OutputOptions;
using R = RunOptions;
using enum Changes;
using enum NameOf;
using enum Program;

}  // namespace

std::vector<Setting> run() {
  // clang-format off
  return {
      {"output_dir", of<&Out::output_dir>, kOutput,
       "metrics, configuration and the trained model go here",
       {.brief = "metrics, checkpoints, final model", .name_of = kTrainingArguments},
       {.writes = true}},
      {"logging_steps", of<&Out::logging_steps>, kOutput,
       "report every so many steps, or every such share of them (0.1); 0: each in the files, and "
       "about 20 lines a run on the console",
       {.least = 0, .most = kMuch, .name_of = kTrainingArguments}},
      {"eval_steps", of<&Out::eval_steps>, kOutput,
       "evaluate every so many steps, or every such share of them (0.1); 0: after every epoch, -1: "
       "never",
       {.least = -1, .most = kMuch, .work = "steps between evaluations",
        .name_of = kTrainingArguments}},
      {"generation", of<&Out::generation>, kNumbers,
       "answer the questions of --validation_file after every evaluation: predictions.json, exact "
       "match, F1",
       {}, {.programs = {kSquad}}},
      {"generation", of<&Out::generation>, kNumbers,
       "answer the last turns of --validation_file after every evaluation: predictions.jsonl, exact "
       "match",
       {}, {.programs = {kChat}}},
      {"generation_max_new_tokens", of<&Out::generation_max_new_tokens>, kNumbers,
       "most tokens of such an answer",
       {.least = 1, .most = kMuch}, {.programs = {kSquad, kChat}}},
      {"predictions", of<&Out::predictions>, kOutput,
       "evaluations write predictions.csv and have macro and weighted F1",
       {}, {.programs = {kClassification}}},
      {"overwrite_output_dir", of<&Out::overwrite_output_dir>, kOutput,
       "replace a finished run in --output_dir"},
      {"report_to", of<&Out::report_to>, kOutput,
       "any of jsonl, csv, tensorboard, wandb, mlflow, or none; wandb and mlflow need their Python "
       "package and jsonl",
       {.name_of = kTrainingArguments}},
      {"save_strategy", of<&Out::save_strategy>, kOutput,
       "checkpoints in --output_dir: every --save_steps, after every epoch, none; with any, one at "
       "the end",
       {.work = "checkpoints", .name_of = kTrainingArguments}},
      {"save_steps", of<&Out::save_steps>, kOutput,
       "with --save_strategy steps: after so many steps, or every such share of them (0.1)",
       {.least = 1, .most = kMuch, .name_of = kTrainingArguments}},
      {"save_total_limit", of<&Out::save_total_limit>, kOutput, "checkpoints that are kept; 0: all",
       {.least = 0, .most = kMuch, .name_of = kTrainingArguments}},
      {"save_async", of<&Out::save_async>, kOutput,
       "checkpoints are copied in memory and written beside the next steps"},
      {"save_on_signal", of<&Out::save_on_signal>, kOutput,
       "with --save_strategy: SIGTERM or SIGUSR1 to any rank writes a checkpoint after the step "
       "under way and ends the run with exit code 75, Ctrl-C with 130; false: signals end it at "
       "once"},
      {"load_best_model_at_end", of<&Out::load_best_model_at_end>, kNumbers,
       "keep the checkpoint whose evaluation is the best, and write final/ from it",
       {.name_of = kTrainingArguments}},
      {"metric_for_best_model", of<&Out::metric_for_best_model>, kNumbers,
       "of the evaluation: loss (less is better); more: accuracy, f1_macro, f1_weighted "
       "(classification), f1, exact_match (--generation)",
       {.choices = {"loss", "accuracy", "f1_macro", "f1_weighted", "f1", "exact_match"},
        .name_of = kTrainingArguments}},
      {"resume_from_checkpoint", of<&R::resume_from_checkpoint>, kNumbers,
       "auto: the newest in --output_dir that loads, if there is one; the PATH of a checkpoint or "
       "of a run; none",
       {.work = "", .brief = "auto, a PATH or none", .name_of = kTrainingArguments}},
      {"max_nonfinite_steps", of<&R::max_nonfinite_steps>, kNumbers,
       "without a loss scale: the run stops (exit code 6) after so many steps in a row whose "
       "gradient norm is not finite; their updates are skipped",
       {.least = 1, .most = kMuch}},
      {"max_overflow_steps", of<&R::max_overflow_steps>, kNumbers,
       "the same in fp16, with a loss scale",
       {.least = 1, .most = kMuch}},
      {"save_final", of<&Out::save_final>, kOutput, "write the trained model to final/"},
      {"deepspeed", of<&R::deepspeed>, kOutput,
       "DeepSpeed configuration file; tessera-lint-ds FILE says what it means here",
       {.name_of = kTrainingArguments}},
      {"deepspeed_defaults", of<&R::deepspeed_defaults>, kNumbers,
       "of which version of DeepSpeed what the file leaves out is",
       {.work = ""}},
      {"ranks", of<&R::ranks>, kOutput, "in-process ranks as threads, CPU only",
       {.least = 1, .most = 65536, .brief = "threads as ranks, CPU only"}},
      {"backend", of<&R::backend>, kOutput, "transport of the collectives",
       {.choices = {"auto", "local", "mpi", "nccl", "tcp"}}},
      {"deterministic", of<&R::deterministic>, kCost,
       "only algorithms that give the same bits every time",
       {.tag = "det"}},
      {"check_communication", of<&R::check_communication>, kOutput,
       "before an operation of the first step starts, compare it with what a dry run of that step "
       "calls on this rank; where they differ, say rank, operation and tensor, and end the run "
       "(exit code 70)"},
      {"dry_run", of<&R::dry_run>, kNumbers, "check everything, say what would run, and stop",
       {.work = ""}},
      {"recovery_test", of<&R::recovery_test>, kNumbers,
       "before a long run: a few steps of it, a save, a kill, going on, also under another layout; "
       "say what that takes and how often to save, and stop",
       {.work = ""}, {.own = false}},
  };
  // clang-format on
}

}  // namespace tessera::settings::rows
