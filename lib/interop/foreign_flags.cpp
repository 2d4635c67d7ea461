// SPDX-License-Identifier: MIT
#include "lib/interop/foreign_flags.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "lib/core/joined.h"
#include "lib/interop/foreign_rows.h"
#include "lib/optim/optimizer_table.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

using F = ForeignFlag;
using foreign::kKernels;
using foreign::kOff;
using foreign::kQuantised;
using foreign::needs;
using foreign::no_effect;
using foreign::refused;
using foreign::same;
using foreign::sets;

constexpr const char* kBest =
    "use --save_strategy steps or epoch with --load_best_model_at_end, which keeps the best";
constexpr const char* kReadsAhead = "batches are prepared ahead on a thread, always";
constexpr const char* kHub =
    "nothing is uploaded; OUTPUT_DIR/final is a Hugging Face directory that `hf upload` takes";
constexpr const char* kAsks = "the data files that are given say what is done";
constexpr const char* kMetricsFiles =
    "use --report_to jsonl,csv,tensorboard,wandb,mlflow; other trackers read metrics.jsonl";
constexpr const char* kStrategyFlags = "choose with --strategy, --dtype and --offload";
constexpr const char* kDdp = "gradients of every parameter are reduced in buckets as they come";
constexpr const char* kHalfEval = "evaluation runs in --dtype, as training does";
constexpr const char* kProcesses =
    "every GPU has a process of its own: start N with mpirun -n N or torchrun, and choose the GPUs "
    "with CUDA_VISIBLE_DEVICES";
constexpr const char* kLevel = "set the environment variable TESSERA_LOG_LEVEL instead";

constexpr F kFlags[] = {
    // Flags that were renamed after 0.2.
    same("keep_activations", "save_norm_outputs"),
    same("message_bytes", "coalesce_bytes"),
    same("offload_gpu_memory", "offload_keep_on_gpu"),
    same("rehearse", "recovery_test"),
    // Flags with other names here.
    same("model_name_or_path", "model"),
    same("model_name", "model"),
    same("config_name", "model_config"),
    same("tokenizer_name", "tokenizer"),
    same("tokenizer_name_or_path", "tokenizer"),
    same("lr", "learning_rate"),
    same("epochs", "num_train_epochs"),
    same("num_epochs", "num_train_epochs"),
    same("max_length", "max_seq_length"),
    same("max_source_length", "max_seq_length"),
    same("model_max_length", "max_seq_length"),
    same("block_size", "max_seq_length"),
    same("per_gpu_train_batch_size", "per_device_train_batch_size"),
    same("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
    same("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    same("warmup_ratio", "warmup_steps"),
    same("num_warmup_steps", "warmup_steps"),
    same("gradient_clipping", "max_grad_norm"),
    same("full_determinism", "deterministic"),
    same("activation_checkpointing", "gradient_checkpointing"),
    same("text_column_name", "text_column"),
    same("text_column_names", "text_column"),
    same("label_column_name", "label_column"),
    same("version_2_with_negative", "squad_v2"),
    refused("batch_size", "*",
            "say which: --per_device_train_batch_size (rows of a micro-batch and rank) or "
            "--gradient_accumulation_steps"),
    refused("dataset", "*", "give files: --train_file FILE and --validation_file FILE"),
    refused("dataset_name", "*", "give files: --train_file FILE and --validation_file FILE"),
    refused("dataset_config_name", "*", "give files: --train_file FILE, --validation_file FILE"),
    refused("max_train_samples", "*", "use --train_slice 0:N"),
    refused("max_eval_samples", "*", "use --validation_slice 0:N"),
    refused("max_answer_length", "*", "answers are never shortened"),

    // Precision.
    sets("fp16", "true", "dtype", "fp16"),
    no_effect("fp16", "false", "--dtype says it"),
    sets("bf16", "true", "dtype", "bf16"),
    no_effect("bf16", "false", "--dtype says it"),
    sets("torch_dtype", "float32", "dtype", "fp32"),
    sets("torch_dtype", "float16", "dtype", "fp16"),
    sets("torch_dtype", "bfloat16", "dtype", "bf16"),
    sets("mixed_precision", "no", "dtype", "fp32"),
    sets("mixed_precision", "fp16", "dtype", "fp16"),
    sets("mixed_precision", "bf16", "dtype", "bf16"),
    sets("dtype", "float32", "dtype", "fp32"),
    sets("dtype", "float16", "dtype", "fp16"),
    sets("dtype", "bfloat16", "dtype", "bf16"),
    no_effect("fp16_full_eval", "*", kHalfEval),
    no_effect("bf16_full_eval", "*", kHalfEval),
    no_effect("fp16_opt_level", "*", "--dtype fp16 keeps fp32 masters, as O2 does"),
    no_effect("half_precision_backend", "*", "there is one way, --dtype"),
    no_effect("fp16_backend", "*", "there is one way, --dtype"),

    // Evaluation, logs, checkpoints.
    sets("eval_strategy", "no", "eval_steps", "-1"),
    sets("eval_strategy", "epoch", "eval_steps", "0"),
    needs("eval_strategy", "steps", "eval_steps"),
    sets("evaluation_strategy", "no", "eval_steps", "-1"),
    sets("evaluation_strategy", "epoch", "eval_steps", "0"),
    needs("evaluation_strategy", "steps", "eval_steps"),
    sets("do_eval", "false", "eval_steps", "-1"),
    no_effect("do_eval", "true", kAsks),
    no_effect("do_train", "true", kAsks),
    refused("do_train", "false", "the programs train; leave it out"),
    no_effect("do_predict", "false", kOff),
    refused("do_predict", "true", "give the file as --validation_file"),
    no_effect("eval_delay", "0", kOff),
    refused("eval_delay", "*", "every evaluation of --eval_steps is made"),
    no_effect("eval_on_start", "false", kOff),
    refused("eval_on_start", "true", "the first evaluation is after --eval_steps steps"),
    no_effect("eval_accumulation_steps", "*", "evaluation keeps sums, not predictions"),
    no_effect("eval_do_concat_batches", "*", "evaluation keeps sums, not predictions"),
    no_effect("eval_use_gather_object", "*", "evaluation keeps sums, not predictions"),
    no_effect("batch_eval_metrics", "*", "evaluation keeps sums, not predictions"),
    no_effect("prediction_loss_only", "*", "evaluation keeps sums, not predictions"),
    no_effect("include_for_metrics", "*", "evaluation keeps sums, not predictions"),
    no_effect("logging_strategy", "steps", "--logging_steps says how many"),
    refused("logging_strategy", "*", "use --logging_steps N (the run's end is always reported)"),
    no_effect("logging_first_step", "*", "the first step is always reported"),
    no_effect("logging_dir", "*", "files go to --output_dir"),
    no_effect("logging_nan_inf_filter", "*", "losses are reported as they are"),
    no_effect("log_on_each_node", "*", "rank 0 reports"),
    refused("log_level", "*", kLevel),
    refused("log_level_replica", "*", kLevel),
    no_effect("disable_tqdm", "*", "progress is drawn on terminals only"),
    sets("report_to", "all", "report_to", "jsonl,csv,tensorboard"),
    sets("report_to", "wandb", "report_to", "jsonl,csv,wandb"),
    sets("report_to", "mlflow", "report_to", "jsonl,csv,mlflow"),
    refused("report_to", "comet_ml", kMetricsFiles),
    refused("report_to", "neptune", kMetricsFiles),
    refused("report_to", "trackio", kMetricsFiles),
    refused("report_to", "swanlab", kMetricsFiles),
    refused("report_to", "clearml", kMetricsFiles),
    refused("report_to", "dvclive", kMetricsFiles),
    refused("report_to", "azure_ml", kMetricsFiles),
    no_effect("run_name", "*", "a run is named by its settings, see `exp` in metrics.jsonl"),
    no_effect("project", "*", "a run is named by its settings, see `exp` in metrics.jsonl"),
    no_effect("trackio_space_id", "*", "metrics stay in --output_dir"),
    no_effect("trackio_bucket_id", "*", "metrics stay in --output_dir"),
    no_effect("trackio_static_space_id", "*", "metrics stay in --output_dir"),
    no_effect("include_num_input_tokens_seen", "*", "tokens of every step are in metrics.jsonl"),
    no_effect("include_tokens_per_second", "*", "tokens_per_second is in metrics.jsonl"),
    no_effect("skip_memory_metrics", "*", "memory is always measured"),
    refused("save_strategy", "best", kBest),
    refused("save_only_model", "true", "--save_strategy no --save_final true"),
    no_effect("save_only_model", "false", kOff),
    no_effect("save_on_each_node", "false", kOff),
    refused("save_on_each_node", "true", "rank 0 writes --output_dir"),
    no_effect("save_safetensors", "true", "it is the only format"),
    refused("save_safetensors", "false", "safetensors is the only format"),
    sets("resume_from_checkpoint", "true", "resume_from_checkpoint", "auto"),
    sets("resume_from_checkpoint", "false", "resume_from_checkpoint", "none"),
    sets("metric_for_best_model", "eval_loss", "metric_for_best_model", "loss"),
    sets("metric_for_best_model", "eval_accuracy", "metric_for_best_model", "accuracy"),
    sets("metric_for_best_model", "eval_f1", "metric_for_best_model", "f1"),
    sets("metric_for_best_model", "eval_exact_match", "metric_for_best_model", "exact_match"),
    sets("metric_for_best_model", "eval_f1_macro", "metric_for_best_model", "f1_macro"),
    sets("metric_for_best_model", "eval_f1_weighted", "metric_for_best_model", "f1_weighted"),
    same("predict_with_generate", "generation"),
    same("generation_max_length", "generation_max_new_tokens"),
    no_effect("greater_is_better", "*", "less loss is better, of all else more"),
    no_effect("ignore_data_skip", "false", kOff),
    refused("ignore_data_skip", "true",
            "the data begins anew with another --train_file, --train_slice or --seed"),
    no_effect("restore_callback_states_from_checkpoint", "*", "there are no callbacks"),
    no_effect("enable_jit_checkpoint", "false", kOff),
    refused("enable_jit_checkpoint", "true", "--save_strategy steps --save_steps N"),
    no_effect("overwrite_cache", "false", kOff),
    refused("overwrite_cache", "true", "a changed file is noticed; remove --cache_dir to be sure"),

    // Optimizer and loss.
    refused("optim", "paged_adamw_8bit",
            "--optim adamw_8bit, with --offload optimizer where it does not fit"),
    no_effect("adafactor", "false", kOff),
    refused("lr_scheduler_type", "greedy", "use reduce_lr_on_plateau, which follows the loss too"),
    no_effect("average_tokens_across_devices", "true", "the loss is the mean over all targets"),
    refused("average_tokens_across_devices", "false", "the loss is the mean over all targets"),
    no_effect("label_smoothing_factor", "0", kOff),
    refused("label_smoothing_factor", "*", "the programs' loss is plain cross-entropy"),
    no_effect("gradient_checkpointing_kwargs", "*", "a block is recomputed as a whole"),
    no_effect("activation_checkpointing_kwargs", "*", "a block is recomputed as a whole"),
    no_effect("use_cache", "*", "training keeps no keys and values"),
    refused("neftune_noise_alpha", "*", "embeddings are trained without noise"),
    no_effect("torch_empty_cache_steps", "*", "memory does not grow from step to step"),
    no_effect("auto_find_batch_size", "false", kOff),
    refused("auto_find_batch_size", "true", "try sizes with tessera-compare, or --dry_run"),

    // Kernels and devices.
    no_effect("torch_compile", "*", kKernels),
    no_effect("torch_compile_backend", "*", kKernels),
    no_effect("torch_compile_mode", "*", kKernels),
    no_effect("torchdynamo", "*", kKernels),
    no_effect("jit_mode_eval", "*", kKernels),
    no_effect("use_ipex", "*", kKernels),
    no_effect("use_liger_kernel", "*", kKernels),
    no_effect("liger_kernel_config", "*", kKernels),
    no_effect("attn_implementation", "*", kKernels),
    no_effect("use_cpu", "false", kOff),
    refused("use_cpu", "true", "hide the GPUs instead: CUDA_VISIBLE_DEVICES= in front"),
    no_effect("no_cuda", "false", kOff),
    refused("no_cuda", "true", "hide the GPUs instead: CUDA_VISIBLE_DEVICES= in front"),
    refused("use_mps_device", "true", "devices are CUDA GPUs and CPUs"),
    no_effect("use_mps_device", "false", kOff),
    refused("debug", "*", "set TESSERA_LOG_LEVEL=debug instead"),

    // Data.
    no_effect("dataloader_num_workers", "*", kReadsAhead),
    no_effect("dataloader_prefetch_factor", "*", kReadsAhead),
    no_effect("dataloader_persistent_workers", "*", kReadsAhead),
    no_effect("dataloader_multiprocessing_context", "*", kReadsAhead),
    no_effect("dataloader_pin_memory", "*", "batches are page-locked where a GPU reads them"),
    refused("data_seed", "*", "--seed seeds the order of the data too"),
    no_effect("dataloader_in_order", "*", "the order is the same on every layout"),
    no_effect("preprocessing_num_workers", "*", "files are tokenised on all of the host's cores"),
    no_effect("dataloader_drop_last", "false", kOff),
    refused("dataloader_drop_last", "true",
            "the last batch is filled with rows that count for nothing"),
    no_effect("remove_unused_columns", "*", "only the named columns are read"),
    refused("label_names", "*", "use --label_column"),
    sets("train_sampling_strategy", "random", "shuffle", "true"),
    sets("train_sampling_strategy", "sequential", "shuffle", "false"),
    sets("train_sampling_strategy", "group_by_length", "group_by_length", "true"),
    refused("train_sampling_strategy", "*",
            "rows are shuffled, in the file's order (--shuffle false) or --group_by_length"),
    no_effect("length_column_name", "*", "lengths are counted"),

    // Strategies and launchers.
    refused("gpus", "*", kProcesses),
    refused("num_gpus", "*", kProcesses),
    refused("n_gpu", "*", kProcesses),
    refused("gpus_per_node", "*", kProcesses),
    refused("nproc_per_node", "*", kProcesses),
    refused("num_processes", "*", kProcesses),
    same("deepspeed_config", "deepspeed"),
    sets("zero_stage", "0", "strategy", "ddp"),
    sets("zero_stage", "1", "strategy", "zero1"),
    sets("zero_stage", "2", "strategy", "zero2"),
    sets("zero_stage", "3", "strategy", "zero3"),
    refused("fsdp", "*", "use --strategy fsdp (--offload for its offload)"),
    refused("fsdp_config", "*", "use --strategy fsdp with --fsdp_unit_numel, --shard_ranks, ..."),
    refused("fsdp_min_num_params", "*", "use --fsdp_unit_numel"),
    no_effect("fsdp_transformer_layer_cls_to_wrap", "*", "every block is a unit"),
    refused("accelerator_config", "*", kStrategyFlags),
    refused("parallelism_config", "*", kStrategyFlags),
    refused("sharded_ddp", "*", kStrategyFlags),
    no_effect("ddp_find_unused_parameters", "*", kDdp),
    no_effect("ddp_broadcast_buffers", "*", kDdp),
    no_effect("ddp_static_graph", "*", kDdp),
    refused("ddp_bucket_cap_mb", "*", "use --bucket_bytes"),
    refused("ddp_backend", "*", "use --backend auto, local, mpi, tcp or nccl"),
    refused("ddp_timeout", "*", "set the environment variable TESSERA_COLLECTIVE_TIMEOUT_S"),
    no_effect("local_rank", "*", "the launcher's environment says it"),

    // Adapters.
    no_effect("use_peft", "false", kOff),
    no_effect("use_lora", "false", kOff),
    no_effect("lora", "false", kOff),
    needs("use_peft", "*", "lora_r"),
    needs("use_lora", "*", "lora_r"),
    needs("lora", "*", "lora_r"),
    same("lora_rank", "lora_r"),
    same("lora_target", "lora_target_modules"),
    sets("init_lora_weights", "true", "lora_init", "default"),
    sets("init_lora_weights", "gaussian", "lora_init", "gaussian"),
    same("adapter_name_or_path", "adapter"),
    same("peft_model_path", "adapter"),
    refused("load_in_8bit", "*", kQuantised),
    refused("load_in_4bit", "*", kQuantised),

    // The hub.
    no_effect("push_to_hub", "false", kOff),
    refused("push_to_hub", "true", kHub),
    refused("hub_token", "*", kHub),
    refused("hub_private_repo", "*", kHub),
    refused("hub_model_id", "*", kHub),
    refused("hub_strategy", "*", kHub),
    refused("hub_always_push", "*", kHub),
    refused("hub_revision", "*", kHub),
};

// Rows that follow from the table of optimizers.
std::vector<ForeignFlag> optimizer_flags() {
  static const std::string others = concat("--optim ", listed(optimizer_names(), " or "),
                                           "; the library takes any OptimizerFactory");
  std::vector<ForeignFlag> all;
  for (const OptimizerRow& row : optimizer_table()) {
    for (const char* alias : row.aliases) all.push_back(sets("optim", alias, "optim", row.name));
    for (const auto& [flag, value] : row.elsewhere) {
      all.push_back(sets(flag, value, "optim", row.name));
    }
  }
  all.push_back(refused("optim_target_modules", "*", others.c_str()));
  all.push_back(refused("adafactor", "true", others.c_str()));
  return all;
}

bool matches(std::string_view pattern, const std::string& value) {
  if (pattern == "*" || pattern == value) return true;
  if (pattern == "true" || pattern == "false") return parse_bool(value) == (pattern == "true");
  double number = 1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return pattern == "0" && error == std::errc() && end == value.data() + value.size() &&
         number == 0;
}

}  // namespace

std::span<const ForeignFlag> foreign_flags() {
  static const std::vector<ForeignFlag> rows = [] {
    std::vector<ForeignFlag> all = optimizer_flags();
    all.insert(all.end(), std::begin(kFlags), std::end(kFlags));
    const auto others = foreign::framework_flags();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return rows;
}

const ForeignFlag* find_foreign(const std::string& name, const std::string& value,
                                std::string* known_values) {
  bool known = false;
  for (const ForeignFlag& row : foreign_flags()) {
    const std::string_view pattern = row.name;
    if (!known && pattern.ends_with(".*") &&
        name.starts_with(pattern.substr(0, pattern.size() - 1))) {
      return &row;
    }
    if (pattern != name) continue;
    if (matches(row.value, value)) return &row;
    known = true;
    if (known_values) *known_values += (known_values->empty() ? "" : ", ") + std::string(row.value);
  }
  return nullptr;
}

}  // namespace tessera::programs
