// SPDX-License-Identifier: MIT
#include "lib/interop/foreign_rows.h"

namespace tessera::programs::foreign {
namespace {

constexpr const char* kPreference =
    "preference data are not trained by tessera; chosen answers are, as chats";
constexpr const char* kTokenizer = "the tokenizer's directory says it: --tokenizer DIR";
constexpr const char* kShape =
    "the model's shape comes from --model DIR, or from --model_config NAME or FILE";
constexpr const char* kFiles = "give files: --train_file FILE and --validation_file FILE";
constexpr const char* kIndexed =
    "indexed data are not read; give --train_file FILE (text), or --train_ids FILE (rows of "
    "tokens)";
constexpr const char* kUlysses = "use --context_parallel N --context_attention heads";
constexpr const char* kExperts = "--model_config names a model with experts, such as olmoe-1b-7b";
constexpr const char* kGlobal =
    "it is --per_device_train_batch_size x --gradient_accumulation_steps x data ranks; give those";
constexpr const char* kVirtual =
    "use --pipeline_schedule interleaved --pipeline_chunks V, the chunks of a rank";
constexpr const char* kLeastRate =
    "use --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 1e-5}'";
constexpr const char* kDecay = "the schedule ends with the run, at --max_steps";
constexpr const char* kRanks = "the launcher says it: mpirun -n N, torchrun or srun";
constexpr const char* kScores = "attention keeps no scores";
constexpr const char* kWeightsOnly =
    "give the earlier run's OUTPUT_DIR/final as --model: it begins with a new optimizer";
constexpr const char* kSharded = "checkpoints are sharded and load into any layout";
constexpr const char* kSplit =
    "give --validation_file FILE; of one file, --train_slice N: and --validation_slice 0:N";
constexpr const char* kShards =
    "--strategy fsdp shards over all data ranks; with replicas --shard_ranks K";
constexpr const char* kPage =
    "docs/migrate/megatron-torchtitan.md has torchtitan's names, and tessera-lint-ds FILE.toml "
    "answers its files";

constexpr ForeignFlag kRows[] = {
    // Common in many scripts.
    no_effect("use_flash_attn", "*", kKernels),
    no_effect("use_flash_attention", "*", kKernels),
    no_effect("use_flash_attention_2", "*", kKernels),
    no_effect("flash_attn", "*", kKernels),
    no_effect("flash_attention", "*", kKernels),
    no_effect("flash_attention_2", "*", kKernels),
    refused("device", "cpu", "hide the GPUs instead: CUDA_VISIBLE_DEVICES= in front"),
    no_effect("device", "cuda", "GPUs are used where they are"),
    no_effect("device", "gpu", "GPUs are used where they are"),
    refused("device", "*", "choose GPUs with CUDA_VISIBLE_DEVICES; every rank has one"),
    no_effect("device_map", "*", "--strategy and the ranks say where the model is"),
    refused("validation_split_percentage", "*", kSplit),
    refused("validation_split", "*", kSplit),
    refused("val_size", "*", kSplit),
    refused("world_size", "*", kRanks),
    refused("nnodes", "*", kRanks),
    refused("node_rank", "*", kRanks),
    refused("master_addr", "*", kRanks),
    refused("master_port", "*", kRanks),
    refused("trust_remote_code", "true", "no code of a model is run"),
    no_effect("trust_remote_code", "false", kOff),
    same("tensor_parallel_size", "tensor_parallel"),
    same("pipeline_parallel_size", "pipeline_parallel"),
    same("context_parallel_size", "context_parallel"),
    same("cp_size", "context_parallel"),
    no_effect("ulysses_sequence_parallel_size", "1", kOff),
    refused("ulysses_sequence_parallel_size", "*", kUlysses),
    sets("sharding_strategy", "FULL_SHARD", "strategy", "fsdp"),
    sets("sharding_strategy", "NO_SHARD", "strategy", "ddp"),
    refused("sharding_strategy", "*", kShards),

    // Values of our own flags.
    refused("offload", "cpu",
            "say what is offloaded: --offload optimizer, optimizer+params or activations"),
    refused("offload", "true",
            "say what is offloaded: --offload optimizer, optimizer+params or activations"),
    sets("offload", "false", "offload", "none"),
    sets("strategy", "dp", "strategy", "ddp"),
    sets("strategy", "fsdp2", "strategy", "fsdp"),
    refused("strategy", "hsdp", "use --strategy fsdp --shard_ranks K"),
    refused("strategy", "deepspeed", "use --strategy zero1, zero2 or zero3, or --deepspeed FILE"),
    sets("dtype", "float", "dtype", "fp32"),
    sets("dtype", "half", "dtype", "fp16"),

    // TRL.
    no_effect("assistant_only_loss", "true", "tessera-finetune-chat trains answers alone"),
    refused("assistant_only_loss", "false", "tessera-finetune-chat --train_on all trains all"),
    no_effect("completion_only_loss", "true", "tessera-finetune-chat trains answers alone"),
    refused("completion_only_loss", "false", "tessera-finetune-chat --train_on all trains all"),
    same("dataset_text_field", "text_column"),
    no_effect("dataset_num_proc", "*", "files are tokenised on all of the host's cores"),
    no_effect("dataset_kwargs", "*", "rows are tokenised as their program says"),
    refused("dataset_train_split", "*", kFiles),
    refused("dataset_test_split", "*", kFiles),
    refused("dataset_streaming", "true", kFiles),
    no_effect("dataset_streaming", "false", kOff),
    same("chat_template_path", "chat_template"),
    no_effect("packing_strategy", "*", "--packing keeps rows whole"),
    no_effect("eval_packing", "*", "evaluation is packed where training is"),
    refused("pad_token", "*", kTokenizer),
    refused("eos_token", "*", kTokenizer),
    no_effect("loss_type", "nll", "it is the loss"),
    refused("loss_type", "*", "the programs' loss is plain cross-entropy"),
    no_effect("activation_offloading", "false", kOff),
    refused("activation_offloading", "true",
            "use --offload activations, with --gradient_checkpointing or --activation_memory"),
    refused("model_init_kwargs", "*", "use --dtype, and the model's config.json"),
    refused("model_revision", "*", "fetch that revision: hf download NAME --revision R"),
    same("lora_rslora", "use_rslora"),
    no_effect("lora_task_type", "*", "the program says it"),
    no_effect("use_dora", "false", kOff),
    refused("use_dora", "true", "use --lora_r, with --use_rslora"),
    no_effect("gradient_checkpointing_use_reentrant", "*", "a block is recomputed as a whole"),
    refused("use_bnb_nested_quant", "*", kQuantised),
    refused("bnb_4bit_quant_type", "*", kQuantised),
    refused("bnb_4bit_compute_dtype", "*", kQuantised),
    refused("beta", "*", kPreference),
    refused("ref_model", "*", kPreference),
    refused("ref_model_name_or_path", "*", kPreference),
    refused("precompute_ref_log_probs", "*", kPreference),
    refused("max_prompt_length", "*", "use --max_seq_length and --long_chats"),

    // Megatron-LM.
    same("tensor_model_parallel_size", "tensor_parallel"),
    same("pipeline_model_parallel_size", "pipeline_parallel"),
    refused("num_layers_per_virtual_pipeline_stage", "*", kVirtual),
    refused("num_virtual_stages_per_pipeline_rank", "*", kVirtual),
    same("expert_model_parallel_size", "expert_parallel"),
    refused("num_experts", "*", kExperts),
    sets("use_distributed_optimizer", "true", "strategy", "zero1"),
    no_effect("use_distributed_optimizer", "false", kOff),
    sets("use_torch_fsdp2", "true", "strategy", "fsdp"),
    sets("use_megatron_fsdp", "true", "strategy", "fsdp"),
    same("overlap_grad_reduce", "overlap"),
    same("overlap_param_gather", "overlap"),
    sets("accumulate_allreduce_grads_in_fp32", "true", "gradient_dtype", "fp32"),
    same("micro_batch_size", "per_device_train_batch_size"),
    refused("global_batch_size", "*", kGlobal),
    same("seq_length", "max_seq_length"),
    same("seq_len", "max_seq_length"),
    same("train_iters", "max_steps"),
    refused("train_samples", "*", "use --max_steps N or --num_train_epochs N"),
    sets("lr_decay_style", "inverse-square-root", "lr_scheduler_type", "inverse_sqrt"),
    sets("lr_decay_style", "WSD", "lr_scheduler_type", "warmup_stable_decay"),
    sets("lr_decay_style", "linear", "lr_scheduler_type", "linear"),
    sets("lr_decay_style", "cosine", "lr_scheduler_type", "cosine"),
    sets("lr_decay_style", "constant", "lr_scheduler_type", "constant_with_warmup"),
    same("lr_warmup_iters", "warmup_steps"),
    same("lr_warmup_fraction", "warmup_steps"),
    refused("lr_decay_iters", "*", kDecay),
    no_effect("min_lr", "0", kOff),
    refused("min_lr", "*", kLeastRate),
    same("clip_grad", "max_grad_norm"),
    same("adam_eps", "adam_epsilon"),
    sets("recompute_granularity", "full", "gradient_checkpointing", "true"),
    no_effect("recompute_granularity", "selective", kScores),
    no_effect("recompute_activations", "*", kScores),
    no_effect("recompute_method", "*", "a block is recomputed as a whole"),
    refused("recompute_num_layers", "*",
            "--activation_memory GiB or auto chooses the number of each stage"),
    same("save", "output_dir"),
    same("load", "resume_from_checkpoint"),
    same("save_interval", "save_steps"),
    same("eval_interval", "eval_steps"),
    same("log_interval", "logging_steps"),
    refused("eval_iters", "*", "all of --validation_file is evaluated; --validation_slice 0:N"),
    refused("no_load_optim", "true", kWeightsOnly),
    refused("no_load_rng", "true", kWeightsOnly),
    refused("finetune", "true", kWeightsOnly),
    no_effect("ckpt_format", "*", kSharded),
    no_effect("use_dist_ckpt", "*", kSharded),
    same("async_save", "save_async"),
    refused("data_path", "*", kIndexed),
    refused("train_data_path", "*", kIndexed),
    refused("valid_data_path", "*", kIndexed),
    refused("split", "*", kSplit),
    refused("tokenizer_type", "*", kTokenizer),
    refused("tokenizer_model", "*", kTokenizer),
    refused("vocab_file", "*", kTokenizer),
    refused("merge_file", "*", kTokenizer),
    refused("num_layers", "*", kShape),
    refused("hidden_size", "*", kShape),
    refused("ffn_hidden_size", "*", kShape),
    refused("num_attention_heads", "*", kShape),
    refused("num_query_groups", "*", kShape),
    refused("max_position_embeddings", "*", kShape),
    refused("vocab_size", "*", kShape),
    no_effect("transformer_impl", "*", kKernels),
    refused("distributed_backend", "*", "use --backend auto, local, mpi, tcp or nccl"),
    refused("distributed_timeout_minutes", "*",
            "set the environment variable TESSERA_COLLECTIVE_TIMEOUT_S"),
    refused("tensorboard_dir", "*",
            "use --report_to jsonl,csv,tensorboard; files go to --output_dir"),

    // torchtitan.
    same("training.local_batch_size", "per_device_train_batch_size"),
    refused("training.global_batch_size", "*", kGlobal),
    same("training.seq_len", "max_seq_length"),
    same("training.steps", "max_steps"),
    same("training.max_norm", "max_grad_norm"),
    sets("training.mixed_precision_param", "float32", "dtype", "fp32"),
    sets("training.mixed_precision_param", "bfloat16", "dtype", "bf16"),
    sets("training.mixed_precision_reduce", "float32", "reduce_dtype", "fp32"),
    sets("training.mixed_precision_reduce", "bfloat16", "reduce_dtype", "bf16"),
    same("training.seed", "seed"),
    refused("training.dataset", "*", kFiles),
    same("training.dataset_path", "train_file"),
    same("optimizer.lr", "learning_rate"),
    same("optimizer.weight_decay", "weight_decay"),
    same("optimizer.beta1", "adam_beta1"),
    same("optimizer.beta2", "adam_beta2"),
    same("optimizer.eps", "adam_epsilon"),
    same("lr_scheduler.warmup_steps", "warmup_steps"),
    sets("lr_scheduler.decay_type", "linear", "lr_scheduler_type", "linear"),
    sets("lr_scheduler.decay_type", "cosine", "lr_scheduler_type", "cosine"),
    refused("lr_scheduler.min_lr_factor", "*", kLeastRate),
    sets("parallelism.data_parallel_shard_degree", "-1", "strategy", "fsdp"),
    no_effect("parallelism.data_parallel_shard_degree", "1", kOff),
    refused("parallelism.data_parallel_shard_degree", "*", kShards),
    no_effect("parallelism.data_parallel_replicate_degree", "1", kOff),
    refused("parallelism.data_parallel_replicate_degree", "*", kShards),
    same("parallelism.tensor_parallel_degree", "tensor_parallel"),
    same("parallelism.pipeline_parallel_degree", "pipeline_parallel"),
    sets("parallelism.pipeline_parallel_schedule", "1F1B", "pipeline_schedule", "1f1b"),
    sets("parallelism.pipeline_parallel_schedule", "GPipe", "pipeline_schedule", "gpipe"),
    sets("parallelism.pipeline_parallel_schedule", "Interleaved1F1B", "pipeline_schedule",
         "interleaved"),
    same("parallelism.context_parallel_degree", "context_parallel"),
    same("parallelism.expert_parallel_degree", "expert_parallel"),
    sets("parallelism.fsdp_reshard_after_forward", "never", "reshard_after_forward", "false"),
    sets("parallelism.fsdp_reshard_after_forward", "always", "reshard_after_forward", "true"),
    sets("activation_checkpoint.mode", "full", "gradient_checkpointing", "true"),
    sets("activation_checkpoint.mode", "none", "gradient_checkpointing", "false"),
    sets("activation_checkpoint.mode", "memory_budget", "activation_memory", "auto"),
    no_effect("activation_checkpoint.mode", "selective", kScores),
    sets("checkpoint.enable", "true", "save_strategy", "steps"),
    sets("checkpoint.enable", "false", "save_strategy", "no"),
    same("checkpoint.interval", "save_steps"),
    same("job.dump_folder", "output_dir"),
    refused("job.config_file", "*", kPage),
    same("model.hf_assets_path", "tokenizer"),
    same("model.tokenizer_path", "tokenizer"),
    refused("model.*", "*", kShape),
    no_effect("compile.*", "*", kKernels),
    same("metrics.log_freq", "logging_steps"),
    refused("training.*", "*", kPage),
    refused("optimizer.*", "*", kPage),
    refused("lr_scheduler.*", "*", kPage),
    refused("parallelism.*", "*", kPage),
    refused("activation_checkpoint.*", "*", kPage),
    refused("checkpoint.*", "*", kPage),
    refused("job.*", "*", kPage),
    refused("metrics.*", "*", kPage),
};

}  // namespace

std::span<const ForeignFlag> framework_flags() { return kRows; }

}  // namespace tessera::programs::foreign
