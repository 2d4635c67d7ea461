#include "lib/settings/train_flags.h"

#include <algorithm>
#include <cmath>

#include "lib/settings/lists.h"
#include "lib/settings/require.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/lr_schedule.h"

namespace tessera::programs {
namespace {

const std::vector<std::string> kDtypes{"fp32", "bf16", "fp16"};

void check_schedule(const TrainOptions& o, Program program) {
  const LrScheduleKind kind = parse_lr_schedule(o.lr_scheduler_type);
  LrSchedule{.kind = kind,
             .peak = o.learning_rate,
             .options = parse_lr_schedule_options(kind, o.lr_scheduler_kwargs)}
      .validate();
  require(kind != LrScheduleKind::kReduceOnPlateau || may_evaluate(o, program),
          "--lr_scheduler_type reduce_lr_on_plateau follows the evaluation's loss; give "
          "--validation_file");
}

bool is_dtype(const std::string& name) {
  return name.empty() || std::find(kDtypes.begin(), kDtypes.end(), name) != kDtypes.end();
}

// Model and data, and how rows become batches.
void validate_data(const TrainOptions& o, Program program) {
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
  require(!o.generation || !o.validation_file.empty(), "--generation needs --validation_file");
  require(!o.generation || o.generation_max_new_tokens < o.max_seq_length,
          "--generation_max_new_tokens ", o.generation_max_new_tokens,
          " leaves nothing of --max_seq_length ", o.max_seq_length, " for questions");
  for (const std::string& slice : {o.train_slice, o.validation_slice}) {
    if (!slice.empty()) Slice::parse(slice);
  }
}

}  // namespace

bool may_evaluate(const TrainOptions& o, Program program) {
  const bool has_file = !o.validation_file.empty() || !o.validation_ids.empty();
  return (has_file || program == Program::kOwn) && o.eval_steps >= 0;
}

void add_flags(FlagSet& flags, TrainOptions& o,
               const std::function<bool(const settings::Setting&)>& keep) {
  for (const settings::Setting& setting : settings::table()) {
    if (!keep(setting)) continue;
    flags.section(settings::title_of(setting.section));
    std::visit(
        [&](auto of) { flags.add(setting.name, &(o.*of), setting.help, setting.more.choices); },
        setting.member);
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
  settings::check_ranges(o);
  require(o.ranks <= 256, "--ranks is ", o.ranks,
          "; threads as ranks end at 256, use mpirun for more");
  require(is_dtype(o.gradient_dtype), "--gradient_dtype is '", o.gradient_dtype,
          "'; fp32, bf16 or fp16");
  require(is_dtype(o.reduce_dtype), "--reduce_dtype is '", o.reduce_dtype, "'; fp32, bf16 or fp16");
}

void validate_options(const TrainOptions& o, Program program) {
  if (program != Program::kOwn) validate_data(o, program);
  require(!o.output_dir.empty() || o.dry_run, "give --output_dir DIR");
  require(!o.rehearse || !o.dry_run, "--dry_run and --rehearse exclude each other");
  validate_layout(o);
  require(o.eval_steps >= -1, "--eval_steps is ", o.eval_steps, "; the least is -1: never");
  require(o.warmup_steps < 1 || o.warmup_steps == std::floor(o.warmup_steps), "--warmup_steps is ",
          o.warmup_steps, "; it must be a whole number, or a part of all steps below 1");
  check_schedule(o, program);
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
  for (const std::string& item : items_of(o.report_to)) {
    const std::vector<std::string> sinks{"jsonl", "csv", "tensorboard", "none"};
    require(std::find(sinks.begin(), sinks.end(), item) != sinks.end(), "--report_to: '", item,
            "' is not one of jsonl, csv, tensorboard, none", nearest_hint(item, sinks),
            "; other trackers read their files");
  }
}

}  // namespace tessera::programs
