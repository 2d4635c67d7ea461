// SPDX-License-Identifier: MIT
#include "lib/settings/idle_flags.h"

#include "backends/check_config.h"
#include "lib/core/joined.h"
#include "lib/settings/layout.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

struct Row {
  const char* flag;
  bool read;
  std::string why;
  bool refused = false;  // the run would be another one
};

// "--optim sgd and muon have a momentum".
std::string those_have(bool (*has)(const OptimizerRow&), const char* what) {
  return concat("--optim ", listed(optimizer_names(has)), " have ", what);
}

// Settings that programs read under a condition, beyond the library's. own: the rows are the
// program's own.
std::vector<Row> rows(const TrainOptions& o, bool own) {
  const bool fp16 = o.parallel.precision.parameter == at::kHalf,
             dynamic = o.precision.loss_scale == 0;
  const bool text = !o.data.train_file.empty() || !o.data.validation_file.empty();
  const bool validates = own || !o.data.validation_file.empty() || !o.data.validation_ids.empty();
  const bool saves = o.output.save_strategy != SaveStrategy::kNo;
  const char* const scale =
      !fp16 ? "only --dtype fp16 scales the loss" : "--loss_scale is one scale for ever";
  const char* const no_text = "rows of ids are taken as they are";
  const char* const no_evaluation = "there is no --validation_file";
  const bool adapters = o.lora.r > 0 && o.lora.adapter.empty();
  const char* const no_adapters = o.lora.adapter.empty()
                                      ? "there are no adapters; give --lora_r N, at least 1"
                                      : "--adapter says it";
  const char* const no_checkpoint = "--save_strategy no writes no checkpoints";
  const OptimizerRow& optim = *o.training.optim;
  const std::string no_betas =
      those_have([](const OptimizerRow& one) { return one.betas; }, "betas");
  return {
      {"loss_scale", fp16, scale},
      {"initial_loss_scale", fp16 && dynamic, scale},
      {"min_loss_scale", fp16 && dynamic, scale},
      {"loss_scale_window", fp16 && dynamic, scale},
      {"tf32", o.parallel.precision.parameter == at::kFloat,
       "only --dtype fp32 has products through TF32"},
      {"max_overflow_steps", fp16, "--max_nonfinite_steps counts without a loss scale"},
      {"max_nonfinite_steps", !fp16, "--max_overflow_steps counts with a loss scale"},
      {"warmup_steps", o.training.lr_scheduler_type != LrScheduleKind::kConstant,
       "--lr_scheduler_type constant has none; constant_with_warmup has"},
      {"adam_beta1", optim.betas, no_betas},
      {"adam_beta2", optim.betas, no_betas},
      {"adam_epsilon", optim.epsilon,
       those_have([](const OptimizerRow& one) { return one.epsilon; }, "an epsilon")},
      {"moments_dtype",
       optim.moments && (!optim.fixed_moments || o.training.moments() == *optim.moments),
       optim.fixed_moments
           ? concat("--optim ", optim.name, " has moments in ",
                    name_of(std::optional(*optim.moments)), "; adamw_torch has them in others")
           : those_have([](const OptimizerRow& one) { return one.moments && !one.fixed_moments; },
                        "moments"),
       true},
      {"lora_r", o.lora.adapter.empty(), no_adapters, true},
      {"lora_alpha", adapters, no_adapters, true},
      {"lora_dropout", adapters, no_adapters, true},
      {"lora_target_modules", adapters, no_adapters, true},
      {"lora_target_parameters", adapters, no_adapters, true},
      {"lora_modules_to_save", adapters, no_adapters, true},
      {"lora_init", adapters, no_adapters, true},
      {"use_rslora", adapters, no_adapters, true},
      {"frozen_dtype", o.lora.r > 0 || !o.lora.adapter.empty() || !o.training.lr_groups.empty(),
       "every weight is trained; adapters leave the model's frozen, give --lora_r N", true},
      {"offload_keep_on_gpu", o.parallel.offload.what == Offload::kOptimizer,
       "it belongs to --offload optimizer"},
      {"save_attention_outputs", o.parallel.gradient_checkpointing || !o.memory.activations.empty(),
       "nothing is recomputed; --gradient_checkpointing or --activation_memory does so"},
      {"pipeline_balance", o.axes.pipeline > 1, "there is no --pipeline_parallel"},
      {"squad_v2", text, no_text},
      {"doc_stride", text, no_text},
      {"chat_template", text, no_text},
      {"train_on", text || o.data.random_rows > 0, no_text},
      {"long_chats", text, no_text},
      {"text_column", text, no_text},
      {"label_column", text, no_text},
      {"random_row_length", o.data.random_rows != 0, "there are no --random_rows"},
      {"per_device_eval_batch_size", validates, no_evaluation},
      {"eval_steps", validates || o.output.eval_steps.is_never(), no_evaluation},
      {"generation_max_new_tokens", o.output.generation, "there is no --generation"},
      {"num_train_epochs", o.training.max_steps <= 0, "--max_steps wins"},
      {"save_steps", o.output.save_strategy == SaveStrategy::kSteps,
       "it counts with --save_strategy steps"},
      {"save_total_limit", saves, no_checkpoint},
      {"save_async", saves, no_checkpoint},
      {"deepspeed_defaults", !o.run.deepspeed.empty(), "there is no --deepspeed"},
  };
}

}  // namespace

std::string why_idle_by_default(const std::string& flag, bool own) {
  TrainOptions options;
  options.data.train_file = "given";  // one of several, and the usual one
  const ParallelConfig config = parallel_config(options);
  for (const LayoutField& field : layout_fields()) {
    if (field.help.empty() || flag != field.name) continue;
    if (std::string why = field.why_idle(config, MeshExtents{}); !why.empty()) return why;
  }
  for (const Row& row : rows(options, own)) {
    if (flag == row.flag && !row.read) return row.why;
  }
  return "";
}

std::vector<IdleFlag> reset_idle_flags(FlagSet& flags, const TrainOptions& options,
                                       int64_t world_size) {
  settings::check_ranges(options);  // includes values that are reset below
  std::vector<IdleFlag> idle;
  const auto leave = [&](const std::string& flag, const std::string& why, bool refused) {
    if (!flags.has(flag) || !flags.given(flag) || !flags.changed(flag)) return;
    const std::string origin = flags.origin(flag);
    const std::string text =
        concat("--", flag, " ", flags.text(flag), " (", origin, ") has no effect here: ", why);
    check(!refused, ErrorCode::kInvalidArgument, text, ". Leave it out");
    flags.reset(flag);
    idle.push_back({origin, text});
  };
  const TrainOptions before = options;  // resetting one flag must not make another idle
  const auto ranks = static_cast<int>(world_size);
  if (before.axes.pipeline >= 1 && before.axes.tensor >= 1) {  // otherwise refused later
    for (const IdleSetting& setting :
         idle_settings(parallel_config(before), mesh_extents(before, ranks))) {
      leave(setting.flag, setting.why, setting.refused);
    }
  }
  for (const Row& row : rows(before, /*own=*/!flags.has("validation_file"))) {
    if (!row.read) leave(row.flag, row.why, row.refused);
  }
  return idle;
}

}  // namespace tessera::programs
