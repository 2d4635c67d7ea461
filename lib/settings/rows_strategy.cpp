#include "lib/settings/table.h"
#include "tessera/backends/parallel_config.h"

namespace tessera::settings::rows {
namespace {

using O = TrainOptions;
using enum Changes;

constexpr double kCount = 65536;
const std::vector<std::string> kDtypes{"fp32", "bf16", "fp16"};

std::string tf32_tag(const O& o) { return o.tf32 && o.dtype == "fp32" ? "tf32" : ""; }
std::string gradient_tag(const O& o) {
  const bool own = !o.gradient_dtype.empty() && o.gradient_dtype != o.dtype;
  return own ? "g" + o.gradient_dtype : "";
}
std::string reduce_tag(const O& o) {
  const std::string& gradient = o.gradient_dtype.empty() ? o.dtype : o.gradient_dtype;
  return o.reduce_dtype.empty() || o.reduce_dtype == gradient ? "" : "r" + o.reduce_dtype;
}
std::string schedule_tag(const O& o) {
  if (o.pipeline_parallel <= 1) return "";
  return o.pipeline_schedule == "interleaved" ? "int" + std::to_string(o.pipeline_chunks)
                                              : o.pipeline_schedule;
}
std::string vocabulary_tag(const O& o) {
  return o.pipeline_parallel > 1 && o.pipeline_vocabulary == "shared" ? "shared" : "";
}
std::string offload_tag(const O& o) {
  return o.offload == "none" ? "" : o.offload == "optimizer" ? "off" : "offp";
}
metrics::Value in_pipeline(const O& o, const std::string& value) {
  return o.pipeline_parallel > 1 ? metrics::Value(value) : metrics::Value();
}
metrics::Value schedule_record(const O& o) { return in_pipeline(o, o.pipeline_schedule); }
metrics::Value vocabulary_record(const O& o) { return in_pipeline(o, o.pipeline_vocabulary); }
metrics::Value balance_record(const O& o) { return in_pipeline(o, o.pipeline_balance); }
metrics::Value chunks_record(const O& o) {
  return o.pipeline_parallel > 1 ? o.pipeline_chunks : int64_t{1};
}
metrics::Value pin_record(const O& o) { return o.offload != "none" && o.pin_memory; }
metrics::Value step_record(const O& o) {
  return o.offload != "none" ? metrics::Value(o.offload_step) : metrics::Value();
}
std::string pin_tag(const O& o) { return o.offload != "none" && o.pin_memory ? "pin" : ""; }

}  // namespace

std::vector<Setting> strategy() {
  // clang-format off
  return {
      {"strategy", &O::strategy, kCost,
       "how the model is spread over the ranks; left out: single on one, ddp on several",
       {.choices = strategy_names()}},
      {"dtype", &O::dtype, kNumbers, "of parameters and computation", {.choices = kDtypes}},
      {"tf32", &O::tf32, kNumbers, "fp32 matrix products through TF32 on GPUs",
       {.tag_of = tf32_tag, .recorded = true}},
      {"gradient_dtype", &O::gradient_dtype, kNumbers,
       "what backward accumulates into; --dtype unless given",
       {.tag_of = gradient_tag}},
      {"reduce_dtype", &O::reduce_dtype, kNumbers,
       "what collectives carry; --gradient_dtype unless given",
       {.tag_of = reduce_tag}},
      {"initial_loss_scale", &O::initial_loss_scale, kNumbers,
       "fp16: first loss scale, up to 2^63"},
      {"loss_scale", &O::loss_scale, kNumbers, "fp16: 0: dynamic; else this one for ever"},
      {"min_loss_scale", &O::min_loss_scale, kNumbers,
       "fp16: the dynamic scale does not fall below it"},
      {"loss_scale_window", &O::loss_scale_window, kNumbers,
       "fp16: finite steps before the scale doubles, up to 2^63",
       {.least = 1, .most = kMuch}},
      {"bucket_bytes", &O::bucket_bytes, kCost,
       "gradients are reduced together in buckets of this size",
       {.least = 1, .most = kMuch, .tag = "bkt", .tuning = true}},
      {"overlap", &O::overlap, kCost, "false: wait for every collective where it is launched",
       {.tag = "wait", .tuning = true}},
      {"reduce_at_boundary", &O::reduce_at_boundary, kCost,
       "zero2, fsdp: reduce once a step, not every micro-batch",
       {.tag = "boundary"}},
      {"persistence_threshold", &O::persistence_threshold, kCost,
       "zero3: parameters with fewer elements stay in full",
       {.least = 0, .tag = "pt", .tuning = true}},
      {"prefetch_blocks", &O::prefetch_blocks, kCost, "zero3, fsdp: blocks gathered ahead",
       {.least = 0, .most = kCount, .tag = "pre", .tuning = true}},
      {"shard_ranks", &O::shard_ranks, kCost,
       "fsdp: ranks that share one copy of the model, which the others replicate; 0: all",
       {.least = 0, .most = kCount, .tag = "hs"}},
      {"reshard_after_forward", &O::reshard_after_forward, kCost,
       "fsdp: false keeps parameters whole until the step",
       {.tag = "keep"}},
      {"fsdp_unit_numel", &O::fsdp_unit_numel, kCost,
       "fsdp: small blocks are wrapped together up to this many elements",
       {.least = 0, .tag = "unit"}},
      {"tensor_parallel", &O::tensor_parallel, kCost, "ranks that share every layer",
       {.least = 1, .most = kCount, .tag = "tp", .recorded = false}},  // records have "tp"
      {"sequence_parallel", &O::sequence_parallel, kCost,
       "tensor parallel: norms and residuals hold a part of the sequence",
       {.tag = "sp"}},
      {"pipeline_parallel", &O::pipeline_parallel, kCost,
       "stages; --gradient_accumulation_steps is the number of micro-batches",
       {.least = 1, .most = kCount, .tag = "pp", .recorded = false}},  // records have "pp"
      {"pipeline_schedule", &O::pipeline_schedule, kCost, "order of the micro-batches",
       {.choices = {"gpipe", "1f1b", "interleaved"}, .tag_of = schedule_tag, .record = schedule_record}},
      {"pipeline_chunks", &O::pipeline_chunks, kCost,
       "interleaved: parts of the model on each rank",
       {.least = 1, .most = kCount, .record = chunks_record}},
      {"pipeline_vocabulary", &O::pipeline_vocabulary, kCost,
       "embedding and head: on the first and the last stage, or cut over all (gpipe, 1f1b)",
       {.choices = {"stage", "shared"}, .tag_of = vocabulary_tag,
        .record = vocabulary_record}},
      {"pipeline_balance", &O::pipeline_balance, kCost, "what stages share out evenly",
       {.choices = {"time", "flops", "parameters", "measured"}, .tag = "by-", .record = balance_record, .tuning = true}},
      {"gradient_checkpointing", &O::gradient_checkpointing, kCost,
       "keep only the inputs of blocks, and run each again in backward",
       {.tag = "gc"}},
      {"keep_activations", &O::keep_activations, kCost,
       "keep outputs of norms and activation functions for backward, which else forms them anew; "
       "no effect with --gradient_checkpointing",
       {.tag = "act"}},
      {"offload", &O::offload, kCost, "state in host memory",
       {.choices = {"none", "optimizer", "optimizer+params"},  // in the order of Offload
        .tag_of = offload_tag}},
      {"offload_step", &O::offload_step, kCost,
       "offload: where the optimizer's update runs; auto: measured at start",
       {.choices = {"auto", "host", "device"},  // in the order of OffloadStep
        .tag = "on-", .record = step_record, .tuning = true}},
      {"pin_memory", &O::pin_memory, kCost, "offload: page-locked host memory",
       {.tag_of = pin_tag, .record = pin_record}},
      {"offload_threads", &O::offload_threads, kCost,
       "offload: of the optimizer step on the host; 0: this rank's share of the cores",
       {.least = 0, .most = kCount, .tag = "threads", .tuning = true}},
  };
  // clang-format on
}

}  // namespace tessera::settings::rows
