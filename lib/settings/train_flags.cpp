// SPDX-License-Identifier: MIT
#include "lib/settings/train_flags.h"

#include <algorithm>
#include <cmath>

#include "lib/core/joined.h"
#include "lib/core/nearest.h"
#include "lib/data/jinja/date.h"
#include "lib/settings/idle_flags.h"
#include "lib/settings/lists.h"
#include "lib/settings/memory_size.h"
#include "lib/settings/require.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/lr_schedule.h"

namespace tessera::programs {
namespace {

void check_schedule(const TrainOptions& o, Program program) {
  const LrScheduleKind kind = o.training.lr_scheduler_type;
  LrSchedule{.kind = kind,
             .peak = o.training.learning_rate,
             .options = parse_lr_schedule_options(kind, o.training.lr_scheduler_kwargs)}
      .validate();
  require(kind != LrScheduleKind::kReduceOnPlateau || may_evaluate(o, program),
          "--lr_scheduler_type reduce_lr_on_plateau follows the evaluation's loss; give "
          "--validation_file");
}

// Model, data, and batching options.
void validate_data(const TrainOptions& o, Program program) {
  const DataOptions& d = o.data;
  require(o.model.directory.empty() != o.model.config.empty(),
          "give either --model DIR (pretrained weights) or --model_config NAME (random weights)");
  const int sources = !d.train_file.empty() + !d.train_ids.empty() + (d.random_rows != 0);
  require(sources == 1,
          "give one of --train_file, --train_ids and --random_rows (rows of random ids)");
  require(d.random_row_length <= d.max_seq_length, "--random_row_length is ", d.random_row_length,
          ", above --max_seq_length ", d.max_seq_length);
  constexpr int64_t kMostRandomTokens = int64_t{1} << 28;  // 2 GiB with their labels
  require(d.random_rows == 0 ||
              (d.max_seq_length >= 2 && d.random_rows <= kMostRandomTokens / d.max_seq_length),
          "--random_rows ", d.random_rows, " of --max_seq_length ", d.max_seq_length,
          ": rows have 2 tokens at least and 2^28 together at most; epochs repeat them");
  require(d.validation_file.empty() || d.validation_ids.empty(),
          "give --validation_file or --validation_ids, not both");
  const bool text = !d.train_file.empty() || !d.validation_file.empty();
  require(!text || !o.model.directory.empty() || !o.model.tokenizer.empty(),
          "text files need --tokenizer DIR (with tokenizer.json)");
  require(d.label_padding == LabelPadding::kIgnore || d.supervise == Supervise::kAll ||
              program != Program::kSquad,
          "--label_padding include needs --supervise all");
  require(!d.packing || d.padding_side == PaddingSide::kRight,
          "--packing leaves rows no side to pad; leave out --padding_side left");
  require(!d.packing || d.label_padding == LabelPadding::kIgnore,
          "--packing leaves no padding to supervise; leave out --label_padding include");
  const bool padded = d.packing || d.pad_to_max_length || d.label_padding == LabelPadding::kInclude;
  require(
      d.padding_free != PaddingFree::kTrue || !padded,
      "--padding_free leaves out the padding that --pad_to_max_length or --label_padding include "
      "ask for, and --packing has none; give one of them");
  require(!o.output.generation || o.axes.expert == 1, "--generation is not built for experts that ",
          o.axes.expert, " ranks share (--expert_parallel); leave one of them out");
  require(!o.output.generation || o.axes.context == 1, "--generation is not built for rows that ",
          o.axes.context, " ranks share (--context_parallel); leave one of them out");
  require(!o.output.generation || !d.validation_file.empty(),
          "--generation needs --validation_file");
  require(!o.output.generation || o.output.generation_max_new_tokens < d.max_seq_length,
          "--generation_max_new_tokens ", o.output.generation_max_new_tokens,
          " leaves nothing of --max_seq_length ", d.max_seq_length, " for questions");
  if (!d.template_date.empty()) jinja::parse_date(d.template_date);
  require(d.show_rows == 0 || !d.train_file.empty(), "--show_rows needs --train_file");
  for (const std::string& slice : {d.train_slice, d.validation_slice}) {
    if (!slice.empty()) Slice::parse(slice);
  }
}

}  // namespace

std::vector<std::string> facts_of(const std::string& name, Program program) {
  const auto& table = settings::table();
  const auto row = std::ranges::find_if(table, [&](const settings::Setting& setting) {
    return setting.name == name && setting.is_of(program);
  });
  if (row == table.end()) return {};
  std::vector<std::string> facts = settings::facts(*row);
  const std::string idle = why_idle_by_default(name, program == Program::kOwn);
  if (!idle.empty()) facts.push_back("Without other flags it has no effect: " + idle);
  return facts;
}

bool may_evaluate(const TrainOptions& o, Program program) {
  const bool has_file = !o.data.validation_file.empty() || !o.data.validation_ids.empty();
  return (has_file || program == Program::kOwn) && !o.output.eval_steps.is_never();
}

void add_flags(FlagSet& flags, TrainOptions& o,
               const std::function<bool(const settings::Setting&)>& keep) {
  for (const settings::Setting& setting : settings::table()) {
    if (!keep(setting)) continue;
    flags.section(settings::title_of(setting.section));
    flags.add(setting.name, setting.field(o), setting.help, setting.facts.choices,
              setting.facts.brief, setting.range_text());
  }
}

void add_strategy_flags(FlagSet& flags, TrainOptions& o) {
  add_flags(flags, o, [](const settings::Setting& setting) {
    return setting.section == settings::Section::kStrategy;
  });
}

void add_train_flags(FlagSet& flags, TrainOptions& o, Program program, FindForeign find) {
  flags.understand_foreign(find);
  add_flags(flags, o, [&](const settings::Setting& setting) { return setting.is_of(program); });
  flags.explain([program](const std::string& name) { return facts_of(name, program); });
}

std::string data_recipe(const TrainOptions& o) {
  JsonWriter recipe;
  recipe.begin_object()
      .field("strict_data", o.data.strict_data)
      .field("text_column", o.data.text_column)
      .field("label_column", o.data.label_column)
      .field("num_labels", o.data.num_labels)
      .field("supervise", name_of(o.data.supervise))
      .field("squad_v2", o.data.squad_v2)
      .field("doc_stride", o.data.doc_stride)
      .field("max_seq_length", o.data.max_seq_length);
  // Options of one program only appear if set, since checkpoints store this text.
  const DataOptions defaults;
  if (o.data.train_on != defaults.train_on) recipe.field("train_on", name_of(o.data.train_on));
  if (o.data.long_chats != defaults.long_chats) {
    recipe.field("long_chats", name_of(o.data.long_chats));
  }
  return recipe.end_object().text();
}

int64_t steps_of(const TrainingOptions& o, int64_t steps_per_epoch) {
  if (o.max_steps > 0) return o.max_steps;
  const double steps = std::ceil(o.num_train_epochs * static_cast<double>(steps_per_epoch));
  require(steps <= kMuch, "--num_train_epochs ", o.num_train_epochs, " of ", steps_per_epoch,
          " steps each: a run has at most 2^40 steps");
  return static_cast<int64_t>(steps);
}

int64_t warmup_steps_of(const TrainingOptions& o, int64_t steps) {
  const double asked = o.warmup_steps;
  return static_cast<int64_t>(asked < 1 ? std::ceil(asked * static_cast<double>(steps)) : asked);
}

void validate_layout(const TrainOptions& o) {
  settings::check_ranges(o);
  require(!parse_activation_memory(o.memory.activations) || !o.parallel.gradient_checkpointing,
          "--activation_memory ", o.memory.activations,
          " chooses the blocks to recompute, and --gradient_checkpointing takes all "
          "of them; give one of the two");
  parse_offload_gpu_memory(o.memory.offload_gpu);
  const bool recomputes = o.parallel.gradient_checkpointing || !o.memory.activations.empty() ||
                          !o.parallel.recomputed_blocks.empty();
  require(recomputes || !o.parallel.offload.activations, "--offload ", offload_name(o.parallel),
          " moves what recomputed layers keep, and none is recomputed; add "
          "--gradient_checkpointing, or --activation_memory");
  require(o.training.per_device_train_batch_size <=
              static_cast<int64_t>(kMuch) / o.training.gradient_accumulation_steps,
          "--per_device_train_batch_size ", o.training.per_device_train_batch_size,
          " x --gradient_accumulation_steps ", o.training.gradient_accumulation_steps,
          ": a rank has at most 2^40 rows a step");
  require(o.training.per_device_train_batch_size <=
              static_cast<int64_t>(kMuch) / std::max<int64_t>(o.data.max_seq_length, 1),
          "--per_device_train_batch_size ", o.training.per_device_train_batch_size,
          " x --max_seq_length ", o.data.max_seq_length, ": a micro-batch has at most 2^40 tokens");
  require(o.run.ranks <= 256, "--ranks is ", o.run.ranks,
          "; threads as ranks end at 256, use mpirun for more");
}

void validate_options(const TrainOptions& o, Program program) {
  settings::check_ranges(o);
  if (program != Program::kOwn) validate_data(o, program);
  require(!o.output.output_dir.empty() || o.run.dry_run || o.data.show_rows > 0,
          "give --output_dir DIR");
  require(!o.run.recovery_test || !o.run.dry_run,
          "--dry_run and --recovery_test exclude each other");
  validate_layout(o);
  require(
      o.training.warmup_steps < 1 || o.training.warmup_steps == std::floor(o.training.warmup_steps),
      "--warmup_steps is ", o.training.warmup_steps,
      "; it must be a whole number, or a part of all steps below 1");
  require(!o.model.resize_embeddings || !o.trains_adapters(),
          "--resize_embeddings draws rows that adapters do not hold; save a base that has them "
          "(model.resize_token_embeddings in transformers), or train without --lora_r");
  require(o.lora.dropout == 0 || o.lora.target_parameters.empty() || !o.lora.adapter.empty(),
          "--lora_dropout is ", o.lora.dropout,
          "; PEFT has none with --lora_target_parameters: leave it at 0");
  check_schedule(o, program);
  validate_ending(o, program);
  require(o.training.max_steps > 0 || o.training.num_train_epochs > 0, "--num_train_epochs is ",
          o.training.num_train_epochs, "; it must be positive unless --max_steps is");
  require(o.precision.min_loss_scale <= o.precision.initial_loss_scale, "--min_loss_scale is ",
          o.precision.min_loss_scale, "; it must be at most --initial_loss_scale ",
          o.precision.initial_loss_scale);
  const std::vector<std::string> sinks = items_of(o.output.report_to);
  const std::vector<std::string> known{"jsonl", "csv", "tensorboard", "wandb", "mlflow", "none"};
  for (const std::string& sink : sinks) {
    require(std::ranges::count(known, sink) > 0, "--report_to: '", sink, "' is not one of ",
            joined(known), nearest_hint(sink, known), "; scripts/send_metrics.py sends to others");
  }
  require(std::ranges::none_of(sinks, is_tracker) || std::ranges::count(sinks, "jsonl") > 0,
          "--report_to ", o.output.report_to,
          ": wandb and mlflow are sent from metrics.jsonl; add jsonl");
}

}  // namespace tessera::programs
