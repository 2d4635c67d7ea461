#pragma once
// What a run is told, with Hugging Face's names and defaults.
#include <cstdint>
#include <string>

namespace tessera {

// What a training program makes of its data files; kOwn: it has a model and rows of its own.
enum class Program { kSquad, kText, kClassification, kOwn };

// What each of these is, may be and changes stands in lib/settings/table.h.
struct TrainOptions {
  // model
  std::string model, model_config, tokenizer;
  // data
  std::string train_file, validation_file, train_ids, validation_ids, train_slice, validation_slice;
  int64_t random_rows = 0, random_row_length = 0;  // rows, their mean length; 0: the longest
  bool strict_data = false;
  std::string cache_dir;
  std::string text_column;               // classification, text
  std::string label_column;              // classification
  int64_t num_labels = 0;                // classification; 0: as many as the data has
  std::string supervise = "answer";      // SQuAD
  std::string label_padding = "ignore";  // SQuAD
  bool squad_v2 = false;                 // SQuAD
  int64_t doc_stride = 128;              // SQuAD
  bool generation = false;               // SQuAD
  int64_t generation_max_new_tokens = 32;
  bool predictions = true;  // classification
  std::string padding_side = "right", padding_free = "auto";
  bool pad_to_max_length = false, packing = false, group_by_length = false;
  int64_t pad_to_multiple_of = 1;
  bool shuffle = true;
  int64_t max_seq_length = 512;
  // output
  bool overwrite_output_dir = false;
  std::string output_dir, report_to = "jsonl,csv";
  int64_t logging_steps = 1, eval_steps = 0;
  bool save_final = true;
  std::string save_strategy = "no", resume_from_checkpoint = "none";
  int64_t save_steps = 500, save_total_limit = 0;
  bool save_async = true, save_on_signal = true;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";
  int64_t max_nonfinite_steps = 1, max_overflow_steps = 20;
  // strategy
  std::string strategy = "single", dtype = "fp32", gradient_dtype, reduce_dtype;
  int64_t bucket_bytes = 25 << 20, persistence_threshold = 100'000, prefetch_blocks = 1;
  bool overlap = true, reduce_at_boundary = false, tf32 = false;
  bool reshard_after_forward = true, gradient_checkpointing = false, keep_activations = false;
  int64_t fsdp_unit_numel = 0, shard_ranks = 0;
  std::string offload = "none", offload_step = "auto";
  bool pin_memory = true;
  int64_t offload_threads = 0;
  int64_t pipeline_parallel = 1, pipeline_chunks = 1, tensor_parallel = 1;
  std::string pipeline_schedule = "1f1b", pipeline_balance = "time", pipeline_vocabulary = "stage";
  bool sequence_parallel = false;
  // training
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1, max_steps = -1;
  double num_train_epochs = 3, learning_rate = 5e-5, weight_decay = 0, max_grad_norm = 1;
  double warmup_steps = 0;  // below 1: that part of all steps
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  std::string lr_scheduler_type = "linear", lr_scheduler_kwargs;
  double loss_scale = 0;  // 0: dynamic
  double initial_loss_scale = 65536, min_loss_scale = 1;
  int64_t loss_scale_window = 1000;
  uint64_t seed = 42;
  bool deterministic = false;
  // run
  std::string deepspeed, deepspeed_defaults = "0.19";
  int64_t ranks = 1;
  std::string backend = "auto";
  bool dry_run = false, rehearse = false;

  int64_t global_batch_size(int64_t data_ranks) const {
    return per_device_train_batch_size * gradient_accumulation_steps * data_ranks;
  }
};

}  // namespace tessera
