// SPDX-License-Identifier: MIT
#include "lib/metrics/field_table.h"

#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::metrics {
namespace {

using F = MetricField;
using enum EventKind;

constexpr const char* kDtypes = R"({"enum": ["fp32", "bf16", "fp16"]})";
constexpr const char* kIssues =
    R"({"type": "array", "items": {"type": "object", "required": ["reason", "count", "places"], )"
    R"("properties": {"reason": {"type": "string"}, "count": {"type": "integer", "minimum": 1}, )"
    R"("places": {"type": "array", "items": {"type": "string"}}}, "additionalProperties": false}})";

// Fields of every event.
std::vector<F> every() {
  return {
      {"run_id",
       kEvery,
       F::kText,
       {.schema = R"({"type": "string", "pattern": "^[0-9a-f]{12}$"})", .column = true}},
      {"time_unix_s", kEvery, F::kSeconds, {.column = true}},
      {"elapsed_s", kEvery, F::kSeconds},
      {"schema", kEvery, F::kText, {.schema = R"({"const": "tessera.metrics/1"})"}},
      {"event", kEvery, F::kText},
      {"rank", kEvery, F::kCount},
  };
}

std::vector<F> run_start() {
  // clang-format off
  return {
      {"exp", kRunStart, F::kText, {.column = true}},
      {"argv", kRunStart, F::kTexts},
      {"flags", kRunStart, F::kText, {.column = true}},
      {"config", kRunStart, F::kObject},
      {"world_size", kRunStart, F::kCount, {.least = 1, .column = true, .layout = true}},
      {"dp", kRunStart, F::kCount, {.least = 1, .column = true, .layout = true}},
      {"tp", kRunStart, F::kCount, {.least = 1, .column = true, .layout = true}},
      {"pp", kRunStart, F::kCount, {.least = 1, .column = true, .layout = true}},
      {"cp", kRunStart, F::kCount, {.least = 1, .column = true, .layout = true}},
      {"global_batch_size", kRunStart, F::kCount, {.least = 1, .column = true, .work = "global batch"}},
      {"parameter_dtype", kRunStart, F::kText, {.schema = kDtypes, .column = true,
       .work = "dtype of parameters"}},
      {"gradient_dtype", kRunStart, F::kText, {.schema = kDtypes, .column = true,
       .work = "dtype of gradients"}},
      {"reduce_dtype", kRunStart, F::kText, {.schema = kDtypes, .column = true,
       .work = "dtype of sums over ranks"}},
      {"master_dtype", kRunStart, F::kText, {.schema = kDtypes, .column = true,
       .work = "dtype of master weights"}},
      {"moment_dtype", kRunStart, F::kText, {.schema = R"({"enum": ["fp32", "bf16", "int8"]})",
       .column = true, .work = "dtype of moments"}},
      {"model", kRunStart, F::kText, {.column = true, .work = "model"}},
      {"num_parameters", kRunStart, F::kCount, {.least = 1, .column = true, .work = "parameters"}},
      {"num_trainable_parameters", kRunStart, F::kCount, {.column = true}},
      {"recomputed_blocks", kRunStart, F::kCount, {.null = true,
       .about = "recomputed in backward, of all stages; null: without --activation_memory",
       .column = true}},
      {"recomputed_by_stage", kRunStart, F::kText, {.null = true, .about = "5,0", .column = true}},
      {"activation_limit_bytes", kRunStart, F::kBytes, {.null = true, .about = "of one rank",
       .column = true}},
      {"dataset", kRunStart, F::kText, {.column = true}},
      {"dataset_sha256", kRunStart, F::kText, {.null = true, .column = true, .work = "data"}},
      {"num_train_samples", kRunStart, F::kCount, {.column = true, .work = "training samples"}},
      {"num_train_steps", kRunStart, F::kCount, {.column = true, .work = "steps"}},
      {"seed", kRunStart, F::kInteger, {.column = true}},
      {"mfu_formula", kRunStart, F::kText, {.null = true,
       .about = "how mfu_ratio is reckoned; null: there is none", .column = true}},
      {"peak_flops_per_second", kRunStart, F::kPerSecond, {.null = true,
       .about = "dense, of one device", .column = true}},
      {"device", kRunStart, F::kText, {.column = true, .work = "device"}},
      {"transport", kRunStart, F::kText, {.column = true}},
      {"launcher", kRunStart, F::kText, {.column = true}},
      {"driver_version", kRunStart, F::kText, {.null = true, .column = true}},
      {"cuda_version", kRunStart, F::kText, {.null = true, .column = true}},
      {"torch_version", kRunStart, F::kText, {.column = true}},
      {"tessera_version", kRunStart, F::kText, {.column = true}},
      {"git_sha", kRunStart, F::kText, {.null = true, .column = true}},
  };
  // clang-format on
}

std::vector<F> training_in_total() {
  // clang-format off
  return {
      {"train_runtime", kRunEnd, F::kSeconds, {.column = true,
       .positions = {.comparison = 7, .results = 11, .side_by_side = 8}, .title = "runtime s",
       .repeat_stem = "train_runtime"}},
      {"train_samples_per_second", kRunEnd, F::kPerSecond, {.null = true, .column = true,
       .positions = {.comparison = 8, .results = 7, .side_by_side = 9}, .title = "train samples/s",
       .summary = {.position = 5, .pattern = "%.2f", .after = " samples/s", .unknown = "0.00",
                   .row = "speed"}}},
      {"train_steps_per_second", kRunEnd, F::kPerSecond, {.null = true, .column = true,
       .positions = {.comparison = 9}}},
      {"train_tokens_per_second", kRunEnd, F::kPerSecond, {.null = true, .column = true,
       .positions = {.comparison = 10},
       .summary = {.position = 6, .after = " tokens/s", .unknown = "0", .row = "speed"}}},
      {"train_loss", kRunEnd, F::kNumber, {.null = true, .column = true,
       .positions = {.comparison = 2, .results = 2, .side_by_side = 1}, .title = "mean train loss",
       .decimals = 4,
       .summary = {.position = 1, .before = "train ", .pattern = "%.5f", .unknown = "nan",
                   .row = "loss"}}},
      {"train_loss_final", kRunEnd, F::kNumber, {.null = true, .column = true,
       .positions = {.comparison = 3, .results = 1, .side_by_side = 2}, .title = "final train loss",
       .decimals = 4,
       .summary = {.position = 2, .before = " (last ", .pattern = "%.5f", .after = ")",
                   .unknown = "nan", .row = "loss"}}},
      {"train_steps", kRunEnd, F::kCount, {.column = true,
       .positions = {.comparison = 1, .results = 12}, .title = "steps"}},
      {"train_samples", kRunEnd, F::kCount, {.column = true}},
      {"train_tokens", kRunEnd, F::kCount, {.column = true}},
  };
  // clang-format on
}

std::vector<F> eval() {
  // clang-format off
  return {
      {"eval_loss", kEval, F::kNumber, {.null = true, .column = true,
       .positions = {.comparison = 4, .side_by_side = 3}, .title = "eval loss", .decimals = 4,
       .console = {.position = 1, .before = "loss ", .pattern = "%.5f", .unknown = "nan"},
       .summary = {.position = 3, .before = "eval ", .pattern = "%.5f", .row = "loss"}}},
      {"eval_runtime", kEval, F::kSeconds, {.column = true,
       .console = {.position = 7, .unknown = "0 ms"}}},
      {"eval_samples_per_second", kEval, F::kPerSecond, {.null = true, .column = true,
       .positions = {.results = 8}, .title = "eval samples/s"}},
      {"eval_steps_per_second", kEval, F::kPerSecond, {.null = true, .column = true}},
      {"eval_accuracy", kEval, F::kRatio, {.optional = true, .column = true,
       .positions = {.results = 4, .side_by_side = 5}, .title = "eval accuracy %",
       .console = {.position = 3, .before = "accuracy "},
       .summary = {.position = 4, .before = "accuracy ", .row = "loss"}}},
      {"eval_f1_macro", kEval, F::kRatio, {.optional = true, .column = true, .scale = 1,
       .console = {.position = 4, .before = "macro F1 ", .pattern = "%.3f"}}},
      {"eval_f1_weighted", kEval, F::kRatio, {.optional = true, .column = true}},
      {"eval_exact_match", kEval, F::kNumber, {.optional = true, .about = "percent", .column = true,
       .positions = {.results = 5, .side_by_side = 6}, .title = "exact match %", .decimals = 1,
       .console = {.position = 5, .before = "exact match ", .pattern = "%.1f %%"}}},
      {"eval_f1", kEval, F::kNumber, {.optional = true, .about = "percent", .column = true,
       .positions = {.results = 6, .side_by_side = 7}, .title = "F1 %", .decimals = 1,
       .console = {.position = 6, .before = "F1 ", .pattern = "%.1f"}}},
      {"eval_perplexity", kEval, F::kNumber, {.null = true, .optional = true, .least = 1,
       .column = true, .positions = {.results = 3, .side_by_side = 4}, .title = "perplexity",
       .decimals = 3, .console = {.position = 2, .before = "perplexity ", .pattern = "%.3f"}}},
      {"epoch", kEval, F::kNumber, {.column = true}},
      {"step", kEval, F::kCount, {.column = true}},
  };
  // clang-format on
}

std::vector<F> run_end() {
  // clang-format off
  return {
      {"step_time_mean_s", kRunEnd, F::kSeconds, {.column = true}},
      {"step_time_median_s", kRunEnd, F::kSeconds, {.column = true,
       .positions = {.comparison = 6, .side_by_side = 11}, .title = "median step ms", .scale = 1e3,
       .repeat_stem = "step_time", .repeat_unit = "_s",
       .summary = {.position = 7, .after = " a step (median)", .row = "speed"}}},
      {"step_time_std_s", kRunEnd, F::kSeconds, {.column = true}},
      {"step_time_p90_s", kRunEnd, F::kSeconds, {.column = true}},
      {"step_time_p99_s", kRunEnd, F::kSeconds, {.column = true, .positions = {.side_by_side = 12},
       .title = "99 % of steps below, ms", .scale = 1e3}},
      {"tokens_per_second_median", kRunEnd, F::kPerSecond, {.column = true,
       .positions = {.comparison = 5, .results = 9, .side_by_side = 10}, .title = "median tokens/s",
       .repeat_stem = "tokens_per_second"}},
      {"tokens_per_second_std", kRunEnd, F::kPerSecond, {.column = true}},
      {"warmup_steps_excluded", kRunEnd, F::kCount, {.column = true}},
      {"gpu_mem_used_peak_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 14, .memory = 1, .side_by_side = 15}, .title = "peak GPU MiB",
       .title_beside = "peak GPU MiB, all of it"}},
      {"gpu_mem_used_mean_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 15, .memory = 2}, .title = "mean GPU MiB"}},
      {"gpu_mem_used_min_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 16, .memory = 3}, .title = "min GPU MiB"}},
      {"gpu_mem_allocated_peak_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 12, .memory = 4, .side_by_side = 14},
       .title = "peak allocated MiB", .title_beside = "peak GPU MiB, allocated",
       .summary = {.position = 9, .before = "peak ", .after = " allocated on a GPU",
                   .row = "memory"}}},
      {"gpu_mem_reserved_peak_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 13, .memory = 5}, .title = "peak reserved MiB"}},
      {"gpu_util_mean_ratio", kRunEnd, F::kRatio, {.null = true, .column = true,
       .positions = {.comparison = 17, .side_by_side = 17}, .title = "mean GPU utilisation %"}},
      {"cpu_rss_tree_peak_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 18, .memory = 6, .side_by_side = 16}, .title = "peak CPU MiB",
       .summary = {.position = 10, .before = "peak ", .after = " on the host", .row = "memory"}}},
      {"cpu_rss_tree_mean_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 19, .memory = 7}, .title = "mean CPU MiB"}},
      {"cpu_pss_tree_peak_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.memory = 8}, .title = "peak CPU PSS MiB"}},
      {"pinned_peak_bytes", kRunEnd, F::kBytes, {.null = true, .column = true,
       .positions = {.comparison = 20, .memory = 9}, .title = "peak pinned MiB"}},
      {"num_skipped_steps", kRunEnd, F::kCount, {.column = true}},
      {"mfu_ratio", kRunEnd, F::kRatio, {.null = true, .column = true,
       .positions = {.comparison = 11, .results = 10, .side_by_side = 13}, .title = "MFU %",
       .same = {"mfu_formula", "peak_flops_per_second"}, .median_of_steps = true,
       .summary = {.position = 8, .before = "MFU ", .row = "speed"}}},
      {"parameter_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true,
       .positions = {.side_by_side = 18}, .title = "parameters MiB"}},
      {"gradient_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true,
       .positions = {.side_by_side = 19}, .title = "gradients MiB"}},
      {"optimizer_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true,
       .positions = {.side_by_side = 20}, .title = "optimizer MiB"}},
      {"buffer_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true}},
      {"host_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true,
       .positions = {.side_by_side = 21}, .title = "on the host MiB"}},
      {"pinned_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true}},
      {"comm_bytes", kRunEnd, F::kBytes, {.optional = true, .column = true,
       .positions = {.side_by_side = 22}, .title = "sent by rank 0 MiB"}},
      {"exit_code", kRunEnd, F::kInteger, {.column = true}},
      {"param_hash_final", kRunEnd, F::kText, {.null = true, .column = true}},
      {"nodes", kRunEnd, F::kCount, {.optional = true, .least = 1}},
      {"plan_rank", kRunEnd, F::kCount, {.optional = true,
       .about = "that held most; the plan_ and measured_ fields are its"}},
  };
  // clang-format on
}

// Planned and measured bytes of the rank that held most.
std::vector<F> planned() {
  const auto both = [](const char* plan, const char* measured, const char* about = "") {
    return std::vector<F>{
        {plan, kRunEnd, F::kBytes, {.null = true, .optional = true, .about = about}},
        {measured, kRunEnd, F::kBytes, {.null = true, .optional = true}}};
  };
  std::vector<F> all;
  for (const std::vector<F>& pair : {
           both("plan_parameter_bytes", "measured_parameter_bytes"),
           both("plan_gradient_bytes", "measured_gradient_bytes"),
           both("plan_optimizer_bytes", "measured_optimizer_bytes"),
           both("plan_buffer_bytes", "measured_buffer_bytes"),
           both("plan_activation_bytes", "measured_activation_bytes"),
           both("plan_allocated_bytes", "measured_allocated_bytes"),
           both("plan_evaluation_bytes", "measured_evaluation_bytes",
                "of tensors while the rank evaluates"),
           both("plan_generation_bytes", "measured_generation_bytes",
                "of tensors while the rank writes answers (--generation)"),
           both("plan_device_used_bytes", "measured_device_used_bytes"),
           both("plan_host_bytes", "measured_host_bytes"),
       }) {
    all.insert(all.end(), pair.begin(), pair.end());
  }
  return all;
}

std::vector<F> step() {
  // clang-format off
  return {
      {"step", kStep, F::kCount, {.least = 1}},
      {"epoch", kStep, F::kNumber},
      {"loss", kStep, F::kNumber, {.null = true,
       .console = {.position = 1, .before = "loss ", .pattern = "%.5f", .unknown = "nan",
                   .width = 13}}},
      {"learning_rate", kStep, F::kNumber, {
       .console = {.position = 2, .before = "lr ", .pattern = "%.2e", .unknown = "nan",
                   .weight = 2}}},
      {"grad_norm", kStep, F::kNumber, {.null = true, .least = 0,
       .console = {.position = 3, .before = "grad_norm ", .pattern = "%.4g", .width = 16,
                   .weight = 4}}},
      {"clip_coefficient", kStep, F::kNumber, {.null = true}},
      {"loss_scale", kStep, F::kNumber, {.null = true}},
      {"skipped", kStep, F::kSwitch},
      {"step_time_s", kStep, F::kSeconds, {.console = {.position = 4, .width = 7, .weight = 5}}},
      {"data_time_s", kStep, F::kSeconds, {.null = true}},
      {"forward_s", kStep, F::kSeconds, {.null = true}},
      {"backward_s", kStep, F::kSeconds, {.null = true}},
      {"comm_exposed_s", kStep, F::kSeconds, {.null = true}},
      {"optimizer_s", kStep, F::kSeconds, {.null = true}},
      {"h2d_d2h_s", kStep, F::kSeconds, {.null = true}},
      {"samples", kStep, F::kCount},
      {"tokens", kStep, F::kCount},
      {"supervised_tokens", kStep, F::kCount},
      {"tokens_per_second", kStep, F::kPerSecond, {.null = true,
       .console = {.position = 5, .after = " tokens/s", .width = 14, .weight = 6}}},
      {"mfu_ratio", kStep, F::kRatio, {.null = true,
       .console = {.position = 6, .before = "MFU ", .pattern = "%4.1f %%", .weight = 1}}},
      {"gpu_mem_allocated_bytes", kStep, F::kBytes, {.null = true,
       .console = {.position = 7, .weight = 3}}},
      {"gpu_mem_reserved_bytes", kStep, F::kBytes, {.null = true}},
      {"comm_bytes", kStep, F::kBytes, {.null = true}},
      {"slowest_rank", kStep, F::kCount, {.null = true}},
      {"router_balance_loss", kStep, F::kNumber, {.null = true, .optional = true,
       .about = "before --router_aux_loss_coef; an even load has the experts of a token"}},
      {"router_z_loss", kStep, F::kNumber, {.null = true, .optional = true,
       .about = "before --router_z_loss_coef"}},
      {"expert_load_entropy_ratio", kStep, F::kRatio, {.null = true, .optional = true,
       .about = "entropy of the load over an even one's, mean of the layers"}},
      {"expert_least_load_ratio", kStep, F::kRatio, {.null = true, .optional = true,
       .about = "the least loaded expert's part of an even share, of all layers"}},
      {"expert_dropped_ratio", kStep, F::kRatio, {.null = true, .optional = true,
       .about = "choices that were dropped: none"}},
      {"expert_tokens", kStep, F::kObject, {.optional = true,
       .schema = R"({"type": "array", "items": {"type": "integer", "minimum": 0}})",
       .about = "by expert, of all layers"}},
  };
  // clang-format on
}

std::vector<F> others() {
  return {
      {"file", kData, F::kText},
      {"role", kData, F::kText, {.schema = R"({"enum": ["train", "validation"]})"}},
      {"rows", kData, F::kCount},
      {"examples", kData, F::kCount},
      {"skipped_rows", kData, F::kCount},
      {"issues", kData, F::kObject, {.schema = kIssues}},
      {"text_columns", kData, F::kTexts},
      {"label_columns", kData, F::kTexts},
      {"cut_contexts", kData, F::kCount, {.null = true}},
      {"windows", kData, F::kCount, {.null = true}},
      {"cut_rows", kData, F::kCount, {.null = true}},
      {"dropped_tokens", kData, F::kCount, {.null = true}},
      {"path", kCheckpoint, F::kText},
      {"bytes", kCheckpoint, F::kBytes},
      {"write_s", kCheckpoint, F::kSeconds},
      {"stall_s", kCheckpoint, F::kSeconds},
      {"waited_s", kCheckpoint, F::kSeconds},
      {"restored_from", kCheckpoint, F::kText, {.null = true}},
      {"gpu", kResource, F::kCount, {.null = true}},
      {"gpu_mem_used_bytes", kResource, F::kBytes, {.null = true}},
      {"gpu_util_ratio", kResource, F::kRatio, {.null = true}},
      {"gpu_power_w", kResource, F::kNumber, {.null = true, .least = 0}},
      {"cpu_rss_tree_bytes", kResource, F::kBytes},
      {"cpu_pss_tree_bytes", kResource, F::kBytes, {.null = true}},
      {"pinned_bytes", kResource, F::kBytes, {.null = true}},
      {"cpu_util_ratio", kResource, F::kRatio, {.null = true}},
      {"kind", kAnomaly, F::kText},
      {"detail", kAnomaly, F::kText},
      {"tensor", kAnomaly, F::kText, {.null = true}},
      {"rank_culprit", kAnomaly, F::kInteger, {.null = true}},
  };
}

}  // namespace

const std::vector<MetricField>& field_table() {
  static const std::vector<MetricField> table = [] {
    std::vector<MetricField> all;
    for (const auto& rows : {every(), run_start(), training_in_total(), eval(), run_end(),
                             planned(), step(), others()}) {
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }();
  return table;
}

}  // namespace tessera::metrics
