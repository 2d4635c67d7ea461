#include "examples/common/options.h"

#include <algorithm>
#include <cmath>

#include "examples/common/foreign_flags.h"
#include "examples/common/layout.h"
#include "examples/common/lists.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/lr_schedule.h"

namespace tessera::programs {
namespace {

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

const std::vector<std::string> kDtypes{"fp32", "bf16", "fp16"};

void add_data_flags(FlagSet& flags, TrainOptions& o, Program program) {
  flags.section("Data");
  if (program == Program::kSquad) {
    flags.add("train_file", &o.train_file, "SQuAD v1.1 or v2 JSON");
    flags.add("validation_file", &o.validation_file, "the same, evaluated after every epoch");
    flags.add("supervise", &o.supervise, "which tokens the loss counts", {"answer", "all"});
    flags.add("label_padding", &o.label_padding,
              "with --supervise all: does the loss count padding", {"ignore", "include"});
    flags.add("squad_v2", &o.squad_v2, "train questions without an answer on an empty one");
    flags.add("doc_stride", &o.doc_stride,
              "tokens that two windows of a context too long for one row share");
  } else if (program == Program::kText) {
    flags.add("train_file", &o.train_file,
              ".txt (one document) or .jsonl (one a line); joined with end tokens, cut into blocks "
              "of --max_seq_length");
    flags.add("validation_file", &o.validation_file, "the same, evaluated after every epoch");
    flags.add("text_column", &o.text_column, "key of the text in JSON lines; text unless given");
  } else {
    flags.add("train_file", &o.train_file, "CSV, TSV or JSONL");
    flags.add("validation_file", &o.validation_file, "the same, evaluated after every epoch");
    flags.add("text_column", &o.text_column, "name or number of the text column");
    flags.add("label_column", &o.label_column, "name or number of the label column");
    flags.add("num_labels", &o.num_labels, "number of classes; 0: as many as the data has");
  }
  flags.add("train_ids", &o.train_ids, "instead of --train_file: JSON lines of input_ids, labels");
  flags.add("random_rows", &o.random_rows,
            "instead of data, to try speed and memory: so many rows of random ids");
  flags.add("random_row_length", &o.random_row_length,
            "their mean length, which then varies as that of questions does; 0: --max_seq_length "
            "each");
  flags.add("validation_ids", &o.validation_ids, "instead of --validation_file");
  flags.add("train_slice", &o.train_slice, "BEGIN:END, the training rows to use");
  flags.add("validation_slice", &o.validation_slice, "BEGIN:END, the validation rows to use");
  flags.add("cache_dir", &o.cache_dir,
            "tokenised files are kept here; none: nowhere; unless given, large ones in "
            "~/.cache/tessera");
  flags.add("strict_data", &o.strict_data, "stop at the first row that cannot be used");
  flags.add("shuffle", &o.shuffle, "a new order every epoch; false keeps the file's");
  flags.add("max_seq_length", &o.max_seq_length, "most tokens of a row");
  flags.add("padding_side", &o.padding_side, "where short rows are filled", {"right", "left"});
  flags.add("padding_free", &o.padding_free,
            "lay a micro-batch's rows end to end instead of padding them; changes no number; auto: "
            "on GPUs",
            {"auto", "true", "false"});
  flags.add("pad_to_max_length", &o.pad_to_max_length,
            "pad to --max_seq_length instead of the longest row of a micro-batch");
  flags.add("pad_to_multiple_of", &o.pad_to_multiple_of, "lengths are rounded up to it");
  flags.add("group_by_length", &o.group_by_length, "batches of rows of about one length");
  flags.add("packing", &o.packing,
            "lay a step's rows end to end in sequences of --max_seq_length; changes no number");
}

void add_training_flags(FlagSet& flags, TrainOptions& o) {
  flags.section("Training");
  flags.add("per_device_train_batch_size", &o.per_device_train_batch_size, "rows of a micro-batch");
  flags.add("per_device_eval_batch_size", &o.per_device_eval_batch_size, "rows in evaluation");
  flags.add("gradient_accumulation_steps", &o.gradient_accumulation_steps, "micro-batches a step");
  flags.add("num_train_epochs", &o.num_train_epochs, "passes over the data");
  flags.add("max_steps", &o.max_steps, "optimizer steps; wins over --num_train_epochs when > 0");
  flags.add("learning_rate", &o.learning_rate, "peak learning rate");
  flags.add("lr_scheduler_type", &o.lr_scheduler_type, "learning rate over time",
            lr_schedule_names());
  flags.add("lr_scheduler_kwargs", &o.lr_scheduler_kwargs,
            "the schedule's options as JSON: {\"num_cycles\": 2}");
  flags.add("warmup_steps", &o.warmup_steps,
            "steps in which the learning rate rises from 0; below 1: that part of all steps");
  flags.add("weight_decay", &o.weight_decay, "AdamW's; skips biases and norm weights");
  flags.add("adam_beta1", &o.adam_beta1, "AdamW's first moment");
  flags.add("adam_beta2", &o.adam_beta2, "AdamW's second moment");
  flags.add("adam_epsilon", &o.adam_epsilon, "AdamW's epsilon");
  flags.add("max_grad_norm", &o.max_grad_norm, "clip to this global norm; 0: no clipping");
  flags.add("seed", &o.seed, "of the weights and the order of the data");
  flags.add("deterministic", &o.deterministic,
            "only algorithms that give the same bits every time");
}

void check_schedule(const TrainOptions& o) {
  const LrScheduleKind kind = parse_lr_schedule(o.lr_scheduler_type);
  LrSchedule{.kind = kind,
             .peak = o.learning_rate,
             .options = parse_lr_schedule_options(kind, o.lr_scheduler_kwargs)}
      .validate();
  const bool evaluates =
      (!o.validation_file.empty() || !o.validation_ids.empty()) && o.eval_steps >= 0;
  require(kind != LrScheduleKind::kReduceOnPlateau || evaluates,
          "--lr_scheduler_type reduce_lr_on_plateau follows the evaluation's loss; give "
          "--validation_file");
}

bool is_dtype(const std::string& name) {
  return name.empty() || std::find(kDtypes.begin(), kDtypes.end(), name) != kDtypes.end();
}

}  // namespace

void add_strategy_flags(FlagSet& flags, TrainOptions& o) {
  flags.section("Strategy and precision");
  flags.add("strategy", &o.strategy,
            "how the model is spread over the ranks; left out: single on one, ddp on several",
            strategy_names());
  flags.add("dtype", &o.dtype, "of parameters and computation", kDtypes);
  flags.add("gradient_dtype", &o.gradient_dtype,
            "what backward accumulates into; --dtype unless given");
  flags.add("reduce_dtype", &o.reduce_dtype,
            "what collectives carry; --gradient_dtype unless given");
  flags.add("tf32", &o.tf32, "fp32 matrix products through TF32 on GPUs");
  flags.add("initial_loss_scale", &o.initial_loss_scale, "fp16: first loss scale, up to 2^63");
  flags.add("loss_scale", &o.loss_scale, "fp16: 0: dynamic; else this one for ever");
  flags.add("min_loss_scale", &o.min_loss_scale, "fp16: the dynamic scale does not fall below it");
  flags.add("loss_scale_window", &o.loss_scale_window,
            "fp16: finite steps before the scale doubles, up to 2^63");
  flags.add("bucket_bytes", &o.bucket_bytes,
            "gradients are reduced together in buckets of this size");
  flags.add("overlap", &o.overlap, "false: wait for every collective where it is launched");
  flags.add("reduce_at_boundary", &o.reduce_at_boundary,
            "zero2, fsdp: reduce once a step, not every micro-batch");
  flags.add("persistence_threshold", &o.persistence_threshold,
            "zero3: parameters with fewer elements stay in full");
  flags.add("prefetch_blocks", &o.prefetch_blocks, "zero3, fsdp: blocks gathered ahead");
  flags.add("reshard_after_forward", &o.reshard_after_forward,
            "fsdp: false keeps parameters whole until the step");
  flags.add("fsdp_unit_numel", &o.fsdp_unit_numel,
            "fsdp: small blocks are wrapped together up to this many elements");
  flags.add("shard_ranks", &o.shard_ranks,
            "fsdp: ranks that share one copy of the model, which the others replicate; 0: all");
  flags.add("gradient_checkpointing", &o.gradient_checkpointing,
            "keep only the inputs of blocks, and run each again in backward");
  flags.add("keep_activations", &o.keep_activations,
            "keep outputs of norms and activation functions for backward, which else forms them "
            "anew; no effect with --gradient_checkpointing");
  flags.add("offload", &o.offload, "state in host memory", offload_names());
  flags.add("offload_step", &o.offload_step,
            "offload: where the optimizer's update runs; auto: measured at start",
            {"auto", "host", "device"});
  flags.add("pin_memory", &o.pin_memory, "offload: page-locked host memory");
  flags.add("offload_threads", &o.offload_threads,
            "offload: of the optimizer step on the host; 0: this rank's share of the cores");
  flags.add("pipeline_parallel", &o.pipeline_parallel,
            "stages; --gradient_accumulation_steps is the number of micro-batches");
  flags.add("pipeline_schedule", &o.pipeline_schedule, "order of the micro-batches",
            {"gpipe", "1f1b", "interleaved"});
  flags.add("pipeline_chunks", &o.pipeline_chunks, "interleaved: parts of the model on each rank");
  flags.add("pipeline_balance", &o.pipeline_balance, "what stages share out evenly",
            {"time", "flops", "parameters", "measured"});
  flags.add("pipeline_vocabulary", &o.pipeline_vocabulary,
            "embedding and head: on the first and the last stage, or cut over all (gpipe, 1f1b)",
            {"stage", "shared"});
  flags.add("tensor_parallel", &o.tensor_parallel, "ranks that share every layer");
  flags.add("sequence_parallel", &o.sequence_parallel,
            "tensor parallel: norms and residuals hold a part of the sequence");
}

void add_train_flags(FlagSet& flags, TrainOptions& o, Program program) {
  flags.understand_foreign();
  flags.section("Model");
  flags.add("model", &o.model, "Hugging Face directory: config.json, safetensors, tokenizer.json");
  flags.add("model_config", &o.model_config,
            "instead of --model: random weights by NAME or config.json");
  flags.add("tokenizer", &o.tokenizer, "directory with tokenizer.json; --model's unless given");
  add_data_flags(flags, o, program);
  add_training_flags(flags, o);
  add_strategy_flags(flags, o);
  flags.section("Run and output");
  flags.add("output_dir", &o.output_dir, "metrics, configuration and the trained model go here");
  flags.add("logging_steps", &o.logging_steps, "report every so many steps");
  flags.add("eval_steps", &o.eval_steps,
            "evaluate every so many steps; 0: after every epoch, -1: never");
  if (program == Program::kSquad) {
    flags.add("generation", &o.generation,
              "answer the questions of --validation_file after every evaluation: predictions.json, "
              "exact match, F1");
    flags.add("generation_max_new_tokens", &o.generation_max_new_tokens,
              "most tokens of such an answer");
  }
  if (program == Program::kClassification) {
    flags.add("predictions", &o.predictions,
              "evaluations write predictions.csv and have macro and weighted F1");
  }
  flags.add("overwrite_output_dir", &o.overwrite_output_dir,
            "replace the run that --output_dir holds, unless it goes on");
  flags.add("report_to", &o.report_to, "any of jsonl, csv, tensorboard, or none");
  add_ending_flags(flags, o);
  flags.add("save_final", &o.save_final, "write the trained model to final/");
  flags.add("deepspeed", &o.deepspeed,
            "DeepSpeed configuration file; tessera-lint-ds FILE says what it means here");
  flags.add("deepspeed_defaults", &o.deepspeed_defaults,
            "of which version of DeepSpeed what the file leaves out is", {"0.16", "0.19"});
  flags.add("ranks", &o.ranks, "in-process ranks as threads, CPU only");
  flags.add("backend", &o.backend, "transport of the collectives",
            {"auto", "local", "mpi", "nccl", "tcp"});
  flags.add("dry_run", &o.dry_run, "check everything, say what would run, and stop");
  flags.add("rehearse", &o.rehearse,
            "before a long run: a few steps of it, a save, a kill, going on, also under another "
            "layout; say what that takes and how often to save, and stop");
}

std::string data_recipe(const TrainOptions& o) {
  return JsonWriter()
      .begin_object()
      .field("strict_data", o.strict_data)
      .field("text_column", o.text_column)
      .field("label_column", o.label_column)
      .field("num_labels", o.num_labels)
      .field("supervise", o.supervise)
      .field("squad_v2", o.squad_v2)
      .field("doc_stride", o.doc_stride)
      .field("max_seq_length", o.max_seq_length)
      .end_object()
      .text();
}

void validate_layout(const TrainOptions& o) {
  struct Range {
    const char* name;
    int64_t value, least, most;
  };
  constexpr int64_t kMuch = int64_t{1} << 40, kCount = 65536;
  for (const Range& range :
       {Range{"bucket_bytes", o.bucket_bytes, 1, kMuch},
        Range{"pipeline_parallel", o.pipeline_parallel, 1, kCount},
        Range{"pipeline_chunks", o.pipeline_chunks, 1, kCount},
        Range{"tensor_parallel", o.tensor_parallel, 1, kCount}, Range{"ranks", o.ranks, 1, kMuch},
        Range{"max_seq_length", o.max_seq_length, 1, kMuch},
        Range{"per_device_train_batch_size", o.per_device_train_batch_size, 1, kMuch},
        Range{"per_device_eval_batch_size", o.per_device_eval_batch_size, 1, kMuch},
        Range{"gradient_accumulation_steps", o.gradient_accumulation_steps, 1, kMuch},
        Range{"generation_max_new_tokens", o.generation_max_new_tokens, 1, kMuch},
        Range{"persistence_threshold", o.persistence_threshold, 0, INT64_MAX},
        Range{"prefetch_blocks", o.prefetch_blocks, 0, kCount},
        Range{"fsdp_unit_numel", o.fsdp_unit_numel, 0, INT64_MAX},
        Range{"shard_ranks", o.shard_ranks, 0, kCount},
        Range{"offload_threads", o.offload_threads, 0, kCount}}) {
    require(range.value >= range.least, "--", range.name, " is ", range.value,
            range.least == 1 ? "; it must be at least 1" : "; it must not be negative");
    require(range.value <= range.most, "--", range.name, " is ", range.value,
            "; that is too large");
  }
  require(o.ranks <= 256, "--ranks is ", o.ranks,
          "; threads as ranks end at 256, use mpirun for more");
  require(is_dtype(o.gradient_dtype), "--gradient_dtype is '", o.gradient_dtype,
          "'; fp32, bf16 or fp16");
  require(is_dtype(o.reduce_dtype), "--reduce_dtype is '", o.reduce_dtype, "'; fp32, bf16 or fp16");
}

void validate_options(const TrainOptions& o, Program program) {
  require(o.model.empty() != o.model_config.empty(),
          "give either --model DIR (pretrained weights) or --model_config NAME (random weights)");
  const int sources = !o.train_file.empty() + !o.train_ids.empty() + (o.random_rows != 0);
  require(sources == 1,
          "give one of --train_file, --train_ids and --random_rows (rows of random ids)");
  require(o.random_row_length <= o.max_seq_length, "--random_row_length is ", o.random_row_length,
          ", above --max_seq_length ", o.max_seq_length);
  constexpr int64_t kMostRandomTokens = int64_t{1} << 28;  // 2 GiB with their labels
  require(o.random_rows == 0 ||
              (o.max_seq_length >= 2 && o.random_rows <= kMostRandomTokens / o.max_seq_length),
          "--random_rows ", o.random_rows, " of --max_seq_length ", o.max_seq_length,
          ": rows have 2 tokens at least and 2^28 together at most; epochs repeat them");
  require(o.validation_file.empty() || o.validation_ids.empty(),
          "give --validation_file or --validation_ids, not both");
  const bool text = !o.train_file.empty() || !o.validation_file.empty();
  require(!text || !o.model.empty() || !o.tokenizer.empty(),
          "text files need --tokenizer DIR (with tokenizer.json)");
  require(!o.output_dir.empty() || o.dry_run, "give --output_dir DIR");
  require(!o.rehearse || !o.dry_run, "--dry_run and --rehearse exclude each other");
  require(o.label_padding == "ignore" || o.supervise == "all" || program != Program::kSquad,
          "--label_padding include needs --supervise all");
  require(!o.packing || o.padding_side == "right",
          "--packing leaves rows no side to pad; leave out --padding_side left");
  require(!o.packing || o.label_padding == "ignore",
          "--packing leaves no padding to supervise; leave out --label_padding include");
  const bool padded = o.packing || o.pad_to_max_length || o.label_padding == "include";
  require(
      o.padding_free != "true" || !padded,
      "--padding_free leaves out the padding that --pad_to_max_length or --label_padding include "
      "ask for, and --packing has none; give one of them");
  const std::pair<const char*, int64_t> positive[] = {{"pad_to_multiple_of", o.pad_to_multiple_of},
                                                      {"logging_steps", o.logging_steps},
                                                      {"loss_scale_window", o.loss_scale_window}};
  validate_layout(o);
  for (const auto& [name, value] : positive) {
    require(value >= 1, "--", name, " is ", value, "; it must be at least 1");
    require(value <= int64_t{1} << 40, "--", name, " is ", value, "; that is too large");
  }
  const std::pair<const char*, double> not_negative[] = {
      {"warmup_steps", o.warmup_steps},
      {"num_labels", static_cast<double>(o.num_labels)},
      {"random_rows", static_cast<double>(o.random_rows)},
      {"random_row_length", static_cast<double>(o.random_row_length)},
      {"doc_stride", static_cast<double>(o.doc_stride)},
      {"learning_rate", o.learning_rate},
      {"weight_decay", o.weight_decay},
      {"max_grad_norm", o.max_grad_norm},
      {"adam_epsilon", o.adam_epsilon}};
  for (const auto& [name, value] : not_negative) {
    require(value >= 0, "--", name, " is ", value, "; it must not be negative");
  }
  for (const auto& [name, beta] :
       {std::pair{"adam_beta1", o.adam_beta1}, {"adam_beta2", o.adam_beta2}}) {
    require(beta >= 0 && beta < 1, "--", name, " is ", beta, "; it must be in [0, 1)");
  }
  require(!o.generation || !o.validation_file.empty(), "--generation needs --validation_file");
  require(!o.generation || o.generation_max_new_tokens < o.max_seq_length,
          "--generation_max_new_tokens ", o.generation_max_new_tokens,
          " leaves nothing of --max_seq_length ", o.max_seq_length, " for questions");
  require(o.eval_steps >= -1, "--eval_steps is ", o.eval_steps, "; the least is -1: never");
  require(o.warmup_steps < 1 || o.warmup_steps == std::floor(o.warmup_steps), "--warmup_steps is ",
          o.warmup_steps, "; it must be a whole number, or a part of all steps below 1");
  check_schedule(o);
  validate_ending(o, program);
  require(o.max_steps > 0 || o.num_train_epochs > 0, "--num_train_epochs is ", o.num_train_epochs,
          "; it must be positive unless --max_steps is");
  require(o.loss_scale >= 0 && o.loss_scale <= kLargestLossScale, "--loss_scale is ", o.loss_scale,
          "; it must be 0 (dynamic) to 2^63");
  require(o.min_loss_scale > 0 && o.min_loss_scale <= o.initial_loss_scale, "--min_loss_scale is ",
          o.min_loss_scale, "; it must be above 0 and at most --initial_loss_scale ",
          o.initial_loss_scale);
  require(o.initial_loss_scale >= 1 && o.initial_loss_scale <= kLargestLossScale,
          "--initial_loss_scale is ", o.initial_loss_scale,
          "; it must be at least 1 and at most 2^63, where growth ends");
  for (const std::string& slice : {o.train_slice, o.validation_slice}) {
    if (!slice.empty()) Slice::parse(slice);
  }
  for (const std::string& item : items_of(o.report_to)) {
    const std::vector<std::string> sinks{"jsonl", "csv", "tensorboard", "none"};
    require(std::find(sinks.begin(), sinks.end(), item) != sinks.end(), "--report_to: '", item,
            "' is not one of jsonl, csv, tensorboard, none", nearest_hint(item, sinks),
            find_foreign("report_to", item) != nullptr ? "; other trackers read their files" : "");
  }
}

}  // namespace tessera::programs
