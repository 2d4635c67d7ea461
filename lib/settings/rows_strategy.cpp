// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iterator>
#include <string_view>

#include "lib/settings/table.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::settings::rows {
namespace {

using O = TrainOptions;
using A = AxesOptions;
using Pr = PrecisionOptions;
using enum Changes;
using enum NameOf;

constexpr double kCount = 65536;

std::string tf32_tag(const O& o) {
  return o.precision.tf32 && o.parallel.precision.parameter == at::kFloat ? "tf32" : "";
}
metrics::Value balance_record(const O& o) {
  return o.axes.pipeline > 1 ? metrics::Value(name_of(o.axes.balance)) : metrics::Value();
}

std::string activation_tag(const O& o) {
  std::string text = o.memory.activations;
  std::erase(text, ' ');
  return text.empty() ? "" : "am" + text;
}
metrics::Value activation_record(const O& o) {
  return o.memory.activations.empty() ? metrics::Value() : metrics::Value(o.memory.activations);
}

std::string offload_gpu_tag(const O& o) {
  std::string text = o.memory.offload_gpu;
  std::erase(text, ' ');
  return text.empty() || o.parallel.offload.what != Offload::kOptimizer ? "" : "gpu" + text;
}
metrics::Value offload_gpu_record(const O& o) {
  if (!o.memory.offload_gpu.empty()) return o.memory.offload_gpu;
  return o.parallel.offload.what == Offload::kOptimizer ? metrics::Value("auto") : metrics::Value();
}

MeshExtents axes_of(const O& o) {
  return {.pipeline = static_cast<int>(o.axes.pipeline),
          .tensor = static_cast<int>(o.axes.tensor),
          .context = static_cast<int>(o.axes.context),
          .expert = static_cast<int>(o.axes.expert)};
}

// The setting for a row of ParallelConfig's table.
Setting setting_of(const LayoutField& field) {
  const LayoutMore& more = field.more;
  Setting setting{field.name, [of = field.field](O& o) { return of(o.parallel); }, field.changes,
                  field.help, field.facts};
  // Records have dtypes as fields of their own, and what changes no number as settings.
  const std::string_view name = field.name;
  if (name == "fp8" || name == "fp8_layers" || name == "frozen_dtype") setting.more.recorded = true;
  if (more.tag_of != nullptr) {
    setting.more.tag_of = [of = more.tag_of](const O& o) { return of(o.parallel, axes_of(o)); };
  }
  if (more.blank) {
    setting.more.record = [&field](const O& o) -> metrics::Value {
      if (field.why_idle(o.parallel, axes_of(o)).empty()) return value_of(field.read(o.parallel));
      const bool is_switch = std::holds_alternative<bool*>(field.read(o.parallel));
      return is_switch ? metrics::Value(false) : metrics::Value();
    };
  }
  return setting;
}

// Settings that ParallelConfig's table lacks, by the part of it that they follow.
std::vector<Setting> own_settings(LayoutPart part) {
  // clang-format off
  switch (part) {
    case LayoutPart::kStrategy:
      return {
        {"tf32", of<&Pr::tf32>, kNumbers,
         "fp32 matrix products through TF32 on GPUs",
         {.work = "tf32", .name_of = kTrainingArguments}, {.tag_of = tf32_tag, .recorded = true}}};
    case LayoutPart::kReduction:
      return {
        {"initial_loss_scale", of<&Pr::initial_loss_scale>, kNumbers,
         "fp16: first loss scale",
         {.least = 1, .most = kLargestLossScale}},
        {"loss_scale", of<&Pr::loss_scale>, kNumbers,
         "fp16: 0: dynamic; else this one for ever",
         {.least = 0, .most = kLargestLossScale}},
        {"min_loss_scale", of<&Pr::min_loss_scale>, kNumbers,
         "fp16: the dynamic scale does not fall below it",
         {.above = 0, .most = kLargestLossScale}},
        {"loss_scale_window", of<&Pr::loss_scale_window>, kNumbers,
         "fp16: finite steps before the scale doubles, up to 2^63",
         {.least = 1, .most = kMuch}}};
    case LayoutPart::kSharding:
      return {
        {"tensor_parallel", of<&A::tensor>, kCost, "ranks that share every layer",
         {.least = 1, .most = kCount, .tag = "tp", .brief = "ranks that share every layer"},
          {.recorded = false}},  // records have "tp"
        {"expert_parallel", of<&A::expert>, kCost,
         "ranks that own a part of every layer's experts each: neighbours on the data axis, whose "
         "ranks it divides",
         {.least = 1, .most = kCount, .tag = "ep", .brief = "ranks that share the experts"}}};
    case LayoutPart::kTensor:
      return {
        {"context_parallel", of<&A::context>, kCost, "ranks that share every row",
         {.least = 1, .most = kCount, .tag = "cp", .brief = "ranks that share every row"},
          {.recorded = false}}};  // records have "cp"
    case LayoutPart::kContext:
      return {
        {"pipeline_parallel", of<&A::pipeline>, kCost,
         "stages; --gradient_accumulation_steps is the number of micro-batches",
         {.least = 1, .most = kCount, .tag = "pp", .brief = "pipeline stages"},
          {.recorded = false}}};  // records have "pp"
    case LayoutPart::kPipeline:
      return {
        {"pipeline_balance", of<&A::balance>, kCost, "what stages share out evenly",
         {.tag = "by-", .tuning = true}, {.record = balance_record}}};
    case LayoutPart::kCheckpointing:
      return {
        {"activation_memory", of<&MemoryOptions::activations>, kCost,
         "most GiB (or 900MiB) of activations on a rank: as few blocks as must be are "
         "recomputed; auto: what the device has left, less 5 %",
         {}, {.tag_of = activation_tag, .record = activation_record, .own = false}}};
    case LayoutPart::kOffload:
      return {
        {"offload_keep_on_gpu", of<&MemoryOptions::offload_gpu>, kCost,
         "offload optimizer: most GiB (or 900MiB) of its state that stay on a GPU and are updated "
         "there; auto, as unless given: what the plan leaves free, less 5 %; 0: none",
         {}, {.tag_of = offload_gpu_tag, .record = offload_gpu_record, .own = false}}};
    case LayoutPart::kActivations:
    case LayoutPart::kHost:
      return {};
  }
  // clang-format on
  return {};
}

}  // namespace

std::vector<Setting> strategy() {
  std::vector<Setting> rows;
  for (size_t part = 0; part < kLayoutParts; ++part) {
    for (const LayoutField& field : layout_fields(static_cast<LayoutPart>(part))) {
      if (!field.help.empty()) rows.push_back(setting_of(field));
    }
    std::ranges::move(own_settings(static_cast<LayoutPart>(part)), std::back_inserter(rows));
  }
  return rows;
}

}  // namespace tessera::settings::rows
