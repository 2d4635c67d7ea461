// SPDX-License-Identifier: MIT
#pragma once
// Options of a run, with Hugging Face's names and defaults.
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "backends/layout_fields.h"
#include "backends/pipeline/schedule_kinds.h"
#include "lib/core/field.h"
#include "lib/optim/lr_schedule_kinds.h"
#include "lib/optim/optimizer_table.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/data/chat_examples.h"
#include "tessera/data/data_loader.h"
#include "tessera/model/lora.h"

namespace tessera {

// Kind of a training program's data files; kOwn: its own model and rows.
enum class Program { kSquad, kText, kClassification, kChat, kOwn };

enum class Supervise { kAnswer, kAll };
enum class LabelPadding { kIgnore, kInclude };
enum class PaddingFree { kAuto, kTrue, kFalse };
enum class ProgramOperators { kAuto, kAten };
enum class SaveStrategy { kSteps, kEpoch, kNo };
enum class DeepSpeedVersion { k16, k19 };

template <>
inline constexpr auto kNames<Supervise> =
    std::to_array<Named<Supervise>>({{"answer", Supervise::kAnswer}, {"all", Supervise::kAll}});
template <>
inline constexpr auto kNames<LabelPadding> = std::to_array<Named<LabelPadding>>(
    {{"ignore", LabelPadding::kIgnore}, {"include", LabelPadding::kInclude}});
template <>
inline constexpr auto kNames<TrainOn> = std::to_array<Named<TrainOn>>(
    {{"all", TrainOn::kAll}, {"assistant", TrainOn::kAssistant}, {"last", TrainOn::kLast}});
template <>
inline constexpr auto kNames<LongChats> = std::to_array<Named<LongChats>>(
    {{"drop_turns", LongChats::kDropTurns}, {"skip", LongChats::kSkip}, {"cut", LongChats::kCut}});
template <>
inline constexpr auto kNames<PaddingSide> = std::to_array<Named<PaddingSide>>(
    {{"right", PaddingSide::kRight}, {"left", PaddingSide::kLeft}});
template <>
inline constexpr auto kNames<PaddingFree> = std::to_array<Named<PaddingFree>>(
    {{"auto", PaddingFree::kAuto}, {"true", PaddingFree::kTrue}, {"false", PaddingFree::kFalse}});
template <>
inline constexpr auto kNames<ProgramOperators> = std::to_array<Named<ProgramOperators>>(
    {{"auto", ProgramOperators::kAuto}, {"aten", ProgramOperators::kAten}});
template <>
inline constexpr auto kNames<SaveStrategy> = std::to_array<Named<SaveStrategy>>(
    {{"steps", SaveStrategy::kSteps}, {"epoch", SaveStrategy::kEpoch}, {"no", SaveStrategy::kNo}});
template <>
inline constexpr auto kNames<std::optional<MomentsDtype>> =
    std::to_array<Named<std::optional<MomentsDtype>>>({{"", std::nullopt},
                                                       {"fp32", MomentsDtype::kFloat32},
                                                       {"bf16", MomentsDtype::kBFloat16},
                                                       {"int8", MomentsDtype::kInt8}});
template <>
inline constexpr auto kNames<DeepSpeedVersion> = std::to_array<Named<DeepSpeedVersion>>(
    {{"0.16", DeepSpeedVersion::k16}, {"0.19", DeepSpeedVersion::k19}});
template <>
inline constexpr auto kNames<LoraInit> = std::to_array<Named<LoraInit>>(
    {{"default", LoraInit::kDefault}, {"gaussian", LoraInit::kGaussian}});

struct ModelOptions {
  std::string directory, config, tokenizer;
  bool resize_embeddings = false;
  ProgramOperators program_operators = ProgramOperators::kAuto;  // of exported programs
  bool program_report = false;
  std::string program_tensor_rules;
};

struct DataOptions {
  std::string train_file, validation_file, train_ids, validation_ids, train_slice, validation_slice;
  // Rows, and their mean length; 0: all have the longest.
  int64_t random_rows = 0, random_row_length = 0;
  bool strict_data = false;
  std::string cache_dir;
  std::string text_column;                             // classification, text
  std::string label_column;                            // classification
  int64_t num_labels = 0;                              // classification; 0: as many as the data has
  Supervise supervise = Supervise::kAnswer;            // SQuAD
  LabelPadding label_padding = LabelPadding::kIgnore;  // SQuAD
  bool squad_v2 = false;                               // SQuAD
  int64_t doc_stride = 128;                            // SQuAD
  std::string chat_template;                           // chat; a name or a file
  std::string template_date;                           // chat; YYYY-MM-DD
  TrainOn train_on = TrainOn::kAssistant;              // chat
  LongChats long_chats = LongChats::kDropTurns;        // chat
  int64_t show_rows = 0;                               // chat
  PaddingSide padding_side = PaddingSide::kRight;
  PaddingFree padding_free = PaddingFree::kAuto;
  bool pad_to_max_length = false, packing = false, group_by_length = false;
  int64_t pad_to_multiple_of = 1;
  bool shuffle = true;
  int64_t max_seq_length = 512;
};

struct TrainingOptions {
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1, max_steps = -1;
  double num_train_epochs = 3, learning_rate = 5e-5, weight_decay = 0, max_grad_norm = 1;
  double warmup_steps = 0;           // below 1: a share of all steps
  double router_aux_loss_coef = -1;  // -1: as config.json says
  double router_z_loss_coef = 0;
  bool count_experts = true;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  LrScheduleKind lr_scheduler_type = LrScheduleKind::kLinear;
  std::string lr_scheduler_kwargs;
  std::string no_decay_names, lr_groups;  // lists
  const OptimizerRow* optim = &optimizer_table().front();
  std::string optim_args;                     // a list
  std::optional<MomentsDtype> moments_dtype;  // default: as --optim says
  uint64_t seed = 42;

  MomentsDtype moments() const {
    return moments_dtype.value_or(optim->moments.value_or(MomentsDtype::kFloat32));
  }
};

// Defaults are LoraRule's.
struct LoraOptions {
  int64_t r = 0;  // 0: no adapters, all parameters are trained
  double alpha = LoraRule{}.alpha, dropout = LoraRule{}.dropout;
  std::string target_modules, target_parameters, modules_to_save;  // lists
  LoraInit init = LoraInit::kDefault;
  bool use_rslora = false;
  std::string adapter;  // directory to start from
};

// Settings beside the dtypes, which are ParallelConfig's.
struct PrecisionOptions {
  bool tf32 = false;
  double loss_scale = 0;  // 0: dynamic
  double initial_loss_scale = 65536, min_loss_scale = 1;
  int64_t loss_scale_window = 1000;
};

// The data axis gets the remaining ranks.
struct AxesOptions {
  int64_t pipeline = 1, tensor = 1, context = 1;
  int64_t expert = 1;                                              // inside the data axis
  int64_t sharers() const { return pipeline * context * tensor; }  // ranks of one data coordinate
  StageBalance balance = StageBalance::kTime;
};

struct MemoryOptions {
  // Per rank: "auto", or for parse_activation_memory(); "": no limit.
  std::string activations;
  // Per rank: "auto", or for parse_offload_gpu_memory(); "": auto.
  std::string offload_gpu;
};

struct OutputOptions {
  std::string output_dir, report_to = "jsonl,csv";
  bool overwrite_output_dir = false;
  StepInterval logging_steps, eval_steps;  // 0: see the table
  bool generation = false;                 // SQuAD
  int64_t generation_max_new_tokens = 32;
  bool predictions = true;  // classification
  SaveStrategy save_strategy = SaveStrategy::kNo;
  StepInterval save_steps{.steps = 500};
  int64_t save_total_limit = 0;
  bool save_async = true, save_on_signal = true, save_final = true;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";
};

struct RunOptions {
  std::string resume_from_checkpoint = "none";
  int64_t max_nonfinite_steps = 1, max_overflow_steps = 20;
  std::string deepspeed;
  DeepSpeedVersion deepspeed_defaults = DeepSpeedVersion::k19;
  int64_t ranks = 1;
  std::string backend = "auto";
  bool deterministic = false, dry_run = false, recovery_test = false, check_communication = false;
};

// Meaning, range and effect of each option are in lib/settings/table.h.
struct TrainOptions {
  ModelOptions model;
  DataOptions data;
  TrainingOptions training;
  LoraOptions lora;
  PrecisionOptions precision;
  ParallelConfig parallel;
  AxesOptions axes;
  MemoryOptions memory;
  OutputOptions output;
  RunOptions run;

  bool trains_adapters() const { return lora.r > 0 || !lora.adapter.empty(); }
  int64_t global_batch_size(int64_t data_ranks) const {
    return training.per_device_train_batch_size * training.gradient_accumulation_steps * data_ranks;
  }
};

// The group that contains this member.
template <typename Group, typename T>
constexpr Group TrainOptions::*group_of(T Group::*) {
  using O = TrainOptions;
  return std::get<Group O::*>(std::tuple(&O::model, &O::data, &O::training, &O::lora, &O::precision,
                                         &O::axes, &O::memory, &O::output, &O::run));
}

}  // namespace tessera
