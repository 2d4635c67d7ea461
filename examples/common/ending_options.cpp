// How a run ends and what it keeps: checkpoints, signals, numbers that are none.
#include "examples/common/options.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

// The best checkpoint is one of those whose step was evaluated.
void check_best(const TrainOptions& o, Program program) {
  const std::string& metric = o.metric_for_best_model;
  const bool of_answers = metric == "f1" || metric == "exact_match";
  require(metric == "loss" || of_answers || program == Program::kClassification,
          "--metric_for_best_model ", metric, " is known of classification only; use loss");
  require(!of_answers || o.generation, "--metric_for_best_model ", metric,
          " needs --generation (tessera-finetune-squad); of classification use accuracy, f1_macro "
          "or f1_weighted");
  require(!metric.starts_with("f1_") || o.predictions, "--metric_for_best_model ", metric,
          " needs --predictions true");
  if (!o.load_best_model_at_end) return;
  const bool evaluated = !o.validation_file.empty() || !o.validation_ids.empty();
  const bool together =
      o.save_strategy == "epoch"
          ? o.eval_steps == 0
          : o.save_strategy == "steps" && o.eval_steps > 0 && o.save_steps % o.eval_steps == 0;
  require(evaluated && together,
          "--load_best_model_at_end needs --validation_file and an evaluation at every checkpoint: "
          "--save_strategy epoch and --eval_steps 0, or --save_strategy steps with --save_steps a "
          "multiple of --eval_steps");
}

}  // namespace

void add_ending_flags(FlagSet& flags, TrainOptions& o) {
  flags.add("save_strategy", &o.save_strategy,
            "checkpoints in --output_dir: every --save_steps, after every epoch, none; with any, "
            "one at the end",
            {"steps", "epoch", "no"});
  flags.add("save_steps", &o.save_steps, "with --save_strategy steps");
  flags.add("save_total_limit", &o.save_total_limit, "checkpoints that are kept; 0: all");
  flags.add("save_async", &o.save_async,
            "checkpoints are copied in memory and written beside the next steps");
  flags.add("save_on_signal", &o.save_on_signal,
            "with --save_strategy: SIGTERM or SIGUSR1 to any rank writes a checkpoint after the "
            "step under way and ends the run with exit code 75, Ctrl-C with 130; false: signals "
            "end it at once");
  flags.add("load_best_model_at_end", &o.load_best_model_at_end,
            "keep the checkpoint whose evaluation is the best, and write final/ from it");
  flags.add("metric_for_best_model", &o.metric_for_best_model,
            "of the evaluation: loss (less is better); more: accuracy, f1_macro, f1_weighted "
            "(classification), f1, exact_match (--generation)",
            {"loss", "accuracy", "f1_macro", "f1_weighted", "f1", "exact_match"});
  flags.add("resume_from_checkpoint", &o.resume_from_checkpoint,
            "auto: the newest in --output_dir that loads, if there is one; the PATH of a "
            "checkpoint or of a run; none");
  flags.add("max_nonfinite_steps", &o.max_nonfinite_steps,
            "without a loss scale: the run stops (exit code 6) after so many steps in a row whose "
            "gradient norm is not finite; their updates are skipped");
  flags.add("max_overflow_steps", &o.max_overflow_steps, "the same in fp16, with a loss scale");
}

void validate_ending(const TrainOptions& o, Program program) {
  const std::pair<const char*, int64_t> positive[] = {
      {"save_steps", o.save_steps},
      {"max_nonfinite_steps", o.max_nonfinite_steps},
      {"max_overflow_steps", o.max_overflow_steps}};
  for (const auto& [name, value] : positive) {
    require(value >= 1, "--", name, " is ", value, "; it must be at least 1");
    require(value <= int64_t{1} << 40, "--", name, " is ", value, "; that is too large");
  }
  require(o.save_total_limit >= 0, "--save_total_limit is ", o.save_total_limit,
          "; it must not be negative");
  require(!o.resume_from_checkpoint.empty(), "give --resume_from_checkpoint auto, PATH or none");
  check_best(o, program);
}

}  // namespace tessera::programs
