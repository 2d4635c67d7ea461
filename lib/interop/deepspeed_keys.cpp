// SPDX-License-Identifier: MIT
#include "lib/interop/deepspeed_keys.h"

#include <string_view>

namespace tessera::programs {
namespace {

using K = DeepSpeedKey;

constexpr bool kAuto = true;

constexpr K used(const char* path, K::Kind kind, bool may_be_auto = false,
                 const char* values = "") {
  return {path, kind, K::kUsed, may_be_auto, values};
}
constexpr K idle(const char* path, K::Kind kind, const char* why, bool may_be_auto = false) {
  return {path, kind, K::kNoEffect, may_be_auto, why};
}
constexpr K refused(const char* path, const char* remedy, bool may_be_auto = false) {
  return {path, K::kAnything, K::kRefused, may_be_auto, remedy};
}
constexpr K renamed(const char* path, K::Kind kind, const char* now) {
  return {path, kind, K::kRenamed, false, now};
}

constexpr const char* kBuffers = "buffers have fixed places and are made once";
constexpr const char* kGathers = "parameters are gathered a block ahead, see --prefetch_blocks";
constexpr const char* kReports = "metrics.jsonl and the console have it, see --logging_steps";
constexpr const char* kTrackers = "other trackers read metrics.jsonl and TensorBoard files";
constexpr const char* kSums = "gradients are summed and divided once by the number of targets";
constexpr const char* kOneCopy = "use --strategy fsdp --shard_ranks N for groups of ranks";
constexpr const char* kExact = "collectives carry what --reduce_dtype says; leave it out";
constexpr const char* kTurnsOn = "--gradient_checkpointing turns recomputation on, block by block";
constexpr const char* kToHost =
    "--offload activations moves what recomputed layers keep to host memory";
constexpr const char* kChooses =
    "--activation_memory takes as few blocks as must run again, --gradient_checkpointing all";
constexpr const char* kWhole = "final/ always holds the whole model";
constexpr const char* kMasters =
    "masters are fp32, and moments unless --moments_dtype says bf16 or int8; leave it out";
constexpr const char* kCheckpoints = "checkpoints load at any number of ranks";
constexpr const char* kOffloads = "copies run beside the update, block by block";
constexpr const char* kDisks = "state is offloaded to host memory only";
constexpr const char* kChecks = "every step's gradients are checked on all ranks";
constexpr const char* kAdamW = "the update is the same";
constexpr const char* kLeaveOut = "it changes what is learned; leave it out";
constexpr const char* kTypes = "fp32|fp16|bf16";

constexpr K kKeys[] = {
    // Batch, clipping, output.
    used("train_batch_size", K::kCount, kAuto),
    used("train_micro_batch_size_per_gpu", K::kCount, kAuto),
    used("gradient_accumulation_steps", K::kCount, kAuto),
    used("gradient_clipping", K::kNumber, kAuto),
    idle("steps_per_print", K::kAnything, kReports),
    idle("wall_clock_breakdown", K::kSwitch, kReports),
    idle("memory_breakdown", K::kSwitch, kReports),
    idle("dump_state", K::kSwitch, "config.json has every value with its origin"),
    idle("log_level", K::kText, "TESSERA_LOG_LEVEL says it"),
    idle("flops_profiler", K::kAnything, kReports),
    idle("comms_logger", K::kAnything, kReports),
    used("tensorboard", K::kSection),
    used("tensorboard.enabled", K::kSwitch),
    idle("tensorboard.output_path", K::kText, "files go to --output_dir"),
    idle("tensorboard.job_name", K::kText, "files go to --output_dir"),
    idle("csv_monitor", K::kAnything, "results.csv and resources.csv are always written"),
    idle("wandb", K::kAnything, "--report_to wandb sends metrics to it"),
    idle("comet", K::kAnything, kTrackers),

    // Precision.
    used("fp16", K::kSection),
    used("fp16.enabled", K::kSwitch, kAuto),
    used("fp16.loss_scale", K::kNumber),
    used("fp16.initial_scale_power", K::kCount),
    used("fp16.loss_scale_window", K::kCount),
    idle("fp16.hysteresis", K::kCount, "the scale halves at the first overflow"),
    idle("fp16.consecutive_hysteresis", K::kSwitch, "the scale halves at the first overflow"),
    used("fp16.min_loss_scale", K::kNumber),
    idle("fp16.auto_cast", K::kSwitch, "inputs are token ids"),
    idle("fp16.fused_mode", K::kSwitch, kAdamW),
    idle("fp16.opt_level", K::kText, "fp16 keeps fp32 masters, as O2 does"),
    refused("fp16.fp16_master_weights_and_grads", kMasters),
    used("bf16", K::kSection),
    used("bf16.enabled", K::kSwitch, kAuto),
    idle("bf16.immediate_grad_update", K::kSwitch, kAdamW),
    idle("bf16.check_grad_overflow", K::kSwitch, kChecks),
    refused("bf16.bf16_master_weights_and_grads", kMasters),
    refused("bf16.bf16_optimizer_states", kMasters),
    renamed("bfloat16", K::kSection, "bf16"),
    used("data_types", K::kSection),
    used("data_types.grad_accum_dtype", K::kText, false, kTypes),
    idle("data_types.param_dtype", K::kText, "fp16 and bf16 say it"),
    idle("data_types.buffer_dtype", K::kText, "fp16 and bf16 say it"),
    used("communication_data_type", K::kText, false, kTypes),
    idle("seq_parallel_communication_data_type", K::kText, "--sequence_parallel carries --dtype"),
    refused("amp", "use \"fp16\" or \"bf16\"", kAuto),
    refused("torch_autocast", "use \"fp16\" or \"bf16\""),
    idle("check_overflow", K::kSwitch, kChecks),

    // Gradients.
    idle("prescale_gradients", K::kSwitch, kSums),
    idle("gradient_predivide_factor", K::kNumber, kSums),
    used("gradient_allreduce_op", K::kText, false, "mean"),
    idle("sparse_gradients", K::kSwitch, "embedding gradients are dense"),
    idle("disable_allgather", K::kSwitch, kAdamW),
    idle("managed_gradient_accumulation", K::kSwitch, kSums),

    // ZeRO.
    used("zero_optimization", K::kSection),
    used("zero_optimization.stage", K::kCount),
    used("zero_optimization.overlap_comm", K::kSwitch),
    used("zero_optimization.reduce_bucket_size", K::kCount, kAuto),
    idle("zero_optimization.allgather_bucket_size", K::kCount, kGathers),
    idle("zero_optimization.allgather_partitions", K::kSwitch, kGathers),
    idle("zero_optimization.reduce_scatter", K::kSwitch, "gradients are always reduce-scattered"),
    idle("zero_optimization.contiguous_gradients", K::kSwitch, kBuffers),
    idle("zero_optimization.use_multi_rank_bucket_allreduce", K::kSwitch, kBuffers),
    idle("zero_optimization.sub_group_size", K::kCount, kOffloads),
    idle("zero_optimization.round_robin_gradients", K::kSwitch, kOffloads),
    used("zero_optimization.stage3_prefetch_bucket_size", K::kCount, kAuto),
    used("zero_optimization.stage3_param_persistence_threshold", K::kCount, kAuto),
    idle("zero_optimization.stage3_model_persistence_threshold", K::kCount, kGathers),
    idle("zero_optimization.stage3_max_live_parameters", K::kCount, kGathers),
    idle("zero_optimization.stage3_max_reuse_distance", K::kCount, kGathers),
    idle("zero_optimization.stage3_module_granularity_threshold", K::kCount, kGathers),
    idle("zero_optimization.stage3_use_all_reduce_for_fetch_params", K::kSwitch, kGathers),
    idle("zero_optimization.stage3_allgather_sequential", K::kSwitch, kGathers),
    idle("zero_optimization.stage3_partition_stream_chunk_size", K::kCount, kGathers),
    idle("zero_optimization.stage3_gather_16bit_weights_on_model_save", K::kSwitch, kWhole, kAuto),
    renamed("zero_optimization.stage3_gather_fp16_weights_on_model_save", K::kSwitch,
            "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    renamed("zero_optimization.prefetch_bucket_size", K::kCount,
            "zero_optimization.stage3_prefetch_bucket_size"),
    renamed("zero_optimization.param_persistence_threshold", K::kCount,
            "zero_optimization.stage3_param_persistence_threshold"),
    renamed("zero_optimization.model_persistence_threshold", K::kCount,
            "zero_optimization.stage3_model_persistence_threshold"),
    renamed("zero_optimization.max_live_parameters", K::kCount,
            "zero_optimization.stage3_max_live_parameters"),
    renamed("zero_optimization.max_reuse_distance", K::kCount,
            "zero_optimization.stage3_max_reuse_distance"),
    renamed("zero_optimization.module_granularity_threshold", K::kCount,
            "zero_optimization.stage3_module_granularity_threshold"),
    renamed("zero_optimization.use_all_reduce_for_fetch_params", K::kSwitch,
            "zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    renamed("zero_optimization.allgather_sequential", K::kSwitch,
            "zero_optimization.stage3_allgather_sequential"),
    renamed("zero_optimization.gather_16bit_weights_on_model_save", K::kSwitch,
            "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    used("zero_optimization.offload_optimizer", K::kSection),
    used("zero_optimization.offload_optimizer.device", K::kText, kAuto, "none|cpu|nvme"),
    used("zero_optimization.offload_optimizer.pin_memory", K::kSwitch),
    idle("zero_optimization.offload_optimizer.nvme_path", K::kText, kDisks, kAuto),
    idle("zero_optimization.offload_optimizer.buffer_count", K::kCount, kOffloads),
    idle("zero_optimization.offload_optimizer.fast_init", K::kSwitch, kOffloads),
    idle("zero_optimization.offload_optimizer.pipeline_read", K::kSwitch, kOffloads),
    idle("zero_optimization.offload_optimizer.pipeline_write", K::kSwitch, kOffloads),
    idle("zero_optimization.offload_optimizer.pipeline", K::kSwitch, kOffloads),
    idle("zero_optimization.offload_optimizer.ratio", K::kNumber,
         "--offload_keep_on_gpu says how much of it stays on the GPU"),
    idle("zero_optimization.offload_optimizer.super_offload", K::kSwitch, kOffloads),
    idle("zero_optimization.offload_optimizer.cpuadam_cores_perc", K::kNumber,
         "--offload_threads says how many"),
    used("zero_optimization.offload_param", K::kSection),
    used("zero_optimization.offload_param.device", K::kText, kAuto, "none|cpu|nvme"),
    used("zero_optimization.offload_param.pin_memory", K::kSwitch),
    idle("zero_optimization.offload_param.nvme_path", K::kText, kDisks, kAuto),
    idle("zero_optimization.offload_param.buffer_count", K::kCount, kOffloads),
    idle("zero_optimization.offload_param.buffer_size", K::kCount, kOffloads),
    idle("zero_optimization.offload_param.max_in_cpu", K::kCount, kOffloads),
    renamed("zero_optimization.cpu_offload", K::kSwitch,
            "zero_optimization.offload_optimizer.device"),
    renamed("zero_optimization.cpu_offload_params", K::kSwitch,
            "zero_optimization.offload_param.device"),
    renamed("zero_optimization.cpu_offload_param", K::kSwitch,
            "zero_optimization.offload_param.device"),
    renamed("zero_optimization.cpu_offload_use_pin_memory", K::kSwitch,
            "zero_optimization.offload_optimizer.pin_memory"),
    idle("zero_optimization.load_from_fp32_weights", K::kSwitch, kCheckpoints),
    idle("zero_optimization.elastic_checkpoint", K::kSwitch, kCheckpoints),
    idle("zero_optimization.pipeline_loading_checkpoint", K::kSwitch, kCheckpoints),
    idle("zero_optimization.ignore_unused_parameters", K::kSwitch,
         "parameters without a gradient get zeros"),
    idle("zero_optimization.legacy_stage1", K::kSwitch, "there is one stage 1"),
    idle("zero_optimization.grad_hooks", K::kSwitch, "gradients are reduced block by block"),
    idle("zero_optimization.memory_efficient_linear", K::kSwitch, kBuffers),
    idle("zero_optimization.override_module_apply", K::kSwitch, kBuffers),
    idle("zero_optimization.log_trace_cache_warnings", K::kSwitch, kReports),
    idle("zero_optimization.enable_sanity_checks", K::kSwitch, kChecks),
    idle("zero_optimization.leaf_module", K::kAnything, "a block is gathered as a whole"),
    refused("zero_optimization.zero_hpz_partition_size", kOneCopy),
    refused("zero_optimization.mics_shard_size", kOneCopy),
    refused("zero_optimization.mics_hierarchical_params_gather", kOneCopy),
    refused("zero_optimization.zero_quantized_weights", kExact),
    refused("zero_optimization.zero_quantized_nontrainable_weights", kExact),
    refused("zero_optimization.zero_quantized_gradients", kExact),
    refused("zero_optimization.zeropp_loco_param", kExact),
    refused("zero_optimization.zenflow", kLeaveOut),
    idle("zero_allow_untested_optimizer", K::kSwitch, "every optimizer here is tested with ZeRO"),
    idle("zero_force_ds_cpu_optimizer", K::kSwitch, "--offload_step says where the update runs"),

    // Optimizer and scheduler.
    used("optimizer", K::kSection),
    used("optimizer.type", K::kText),
    idle("optimizer.legacy_fusion", K::kSwitch, kAdamW),
    used("optimizer.params", K::kSection),
    used("optimizer.params.lr", K::kNumber, kAuto),
    used("optimizer.params.muon_lr", K::kNumber),
    used("optimizer.params.adam_lr", K::kNumber),
    used("optimizer.params.betas", K::kBetas, kAuto),
    used("optimizer.params.eps", K::kNumber, kAuto),
    used("optimizer.params.weight_decay", K::kNumber, kAuto),
    used("optimizer.params.adam_w_mode", K::kSwitch),
    used("optimizer.params.momentum", K::kNumber),
    used("optimizer.params.nesterov", K::kSwitch),
    used("optimizer.params.bias_correction", K::kSwitch),
    refused("optimizer.params.amsgrad", "leave it out"),
    idle("optimizer.params.torch_adam", K::kSwitch, kAdamW, kAuto),
    idle("optimizer.params.fp32_optimizer_states", K::kSwitch, "they are fp32"),
    renamed("optimizer.params.max_grad_norm", K::kNumber, "gradient_clipping"),
    used("scheduler", K::kSection),
    used("scheduler.type", K::kText),
    used("scheduler.params", K::kSection),
    used("scheduler.params.warmup_min_lr", K::kNumber, kAuto),
    used("scheduler.params.warmup_max_lr", K::kNumber, kAuto),
    used("scheduler.params.warmup_num_steps", K::kCount, kAuto),
    used("scheduler.params.total_num_steps", K::kCount, kAuto),
    used("scheduler.params.warmup_type", K::kText, false, "log|linear"),
    used("scheduler.params.warmup_min_ratio", K::kNumber),
    used("scheduler.params.cos_min_ratio", K::kNumber),
    idle("scheduler.params.last_batch_iteration", K::kAnything, "checkpoints know the step"),

    // Stages, layers, recomputation.
    used("pipeline", K::kSection),
    used("pipeline.stages", K::kCount, kAuto),
    idle("pipeline.partition", K::kText, "--pipeline_balance says it"),
    idle("pipeline.partition_method", K::kText, "--pipeline_balance says it"),
    idle("pipeline.seed_layers", K::kSwitch, "every block has a seed of its own"),
    used("pipeline.activation_checkpoint_interval", K::kCount),
    idle("pipeline.pipe_partitioned", K::kAnything, kBuffers),
    idle("pipeline.grad_partitioned", K::kAnything, kBuffers),
    idle("pipeline.use_reentrant", K::kSwitch, kTurnsOn),
    used("tensor_parallel", K::kSection),
    used("tensor_parallel.autotp_size", K::kCount),
    renamed("tensor_parallel.tp_size", K::kCount, "tensor_parallel.autotp_size"),
    refused("sequence_parallel_size", "use --context_parallel N --context_attention heads"),
    used("activation_checkpointing", K::kSection),
    idle("activation_checkpointing.partition_activations", K::kSwitch, kTurnsOn),
    idle("activation_checkpointing.cpu_checkpointing", K::kSwitch, kToHost),
    idle("activation_checkpointing.contiguous_memory_optimization", K::kSwitch, kTurnsOn),
    idle("activation_checkpointing.number_checkpoints", K::kAnything, kChooses),
    idle("activation_checkpointing.synchronize_checkpoint_boundary", K::kSwitch, kTurnsOn),
    idle("activation_checkpointing.profile", K::kSwitch, kTurnsOn),

    // Other keys.
    idle("checkpoint", K::kAnything, kCheckpoints),
    idle("nebula", K::kAnything, "checkpoints are written beside the next steps, see --save_async"),
    idle("aio", K::kAnything, kDisks),
    idle("vocabulary_size", K::kCount, "the model's configuration says it"),
    idle("graph_harvesting", K::kSwitch, "nothing is compiled at run time"),
    idle("use_data_before_expert_parallelism", K::kSwitch,
         "the expert axis lies inside the data axis"),
    idle("data_parallel_group", K::kAnything, "--pipeline_parallel and --tensor_parallel say it"),
    idle("compile", K::kAnything, "the library has kernels of its own, none is compiled in a run"),
    refused("dataloader_drop_last", "the last batch is filled with rows that count for nothing"),
    refused("elasticity", "leave it out; a run goes on from its checkpoint at any number of ranks"),
    refused("autotuning", "leave it out and write the sizes; tessera-compare tries layouts"),
    refused("sparse_attention", kLeaveOut),
    refused("progressive_layer_drop", kLeaveOut),
    refused("curriculum_learning", kLeaveOut),
    refused("data_efficiency", kLeaveOut),
    refused("compression_training", kLeaveOut),
    refused("quantize_training", kLeaveOut),
    refused("eigenvalue", kLeaveOut),
    refused("hybrid_engine", kLeaveOut),
    refused("weight_quantization", kLeaveOut),
};

}  // namespace

std::span<const DeepSpeedKey> deepspeed_keys() { return kKeys; }

const DeepSpeedKey* find_deepspeed_key(const std::string& path) {
  for (const DeepSpeedKey& key : kKeys) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

std::vector<std::string> deepspeed_names(const std::string& section) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> names;
  for (const DeepSpeedKey& key : kKeys) {
    const std::string_view path = key.path;
    if (!path.starts_with(prefix)) continue;
    const std::string_view name = path.substr(prefix.size());
    if (name.find('.') == name.npos) names.emplace_back(name);
  }
  return names;
}

}  // namespace tessera::programs
