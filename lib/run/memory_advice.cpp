// SPDX-License-Identifier: MIT
#include "lib/run/memory_advice.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "backends/strategy_kinds.h"
#include "lib/core/host_memory.h"
#include "lib/core/number_text.h"
#include "lib/plan/memory_plan.h"
#include "lib/run/layout.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// Lower bound of the largest micro-batch's tokens per row: the mean where rows lie end to end.
int64_t length_of(const TokenTable& rows, const TrainOptions& o, bool on_gpu) {
  if (o.data.pad_to_max_length || o.data.packing || rows.size() == 0) return o.data.max_seq_length;
  const PaddingFree wanted = o.data.padding_free;
  const bool laid_end_to_end =
      wanted == PaddingFree::kTrue || (wanted == PaddingFree::kAuto && on_gpu);
  if (!laid_end_to_end) return std::min(o.data.max_seq_length, rows.longest());
  int64_t tokens = 0;
  for (int64_t row = 0; row < rows.size(); ++row) {
    tokens += std::min<int64_t>(o.data.max_seq_length, std::ssize(rows.row(row).input_ids));
  }
  return std::max<int64_t>(1, tokens / rows.size());
}

PlannedLayout layout_of(const Prepared& run, const TrainOptions& o, int64_t ranks, bool on_gpu) {
  PlannedLayout layout = planned_layout(run, o, static_cast<int>(ranks));
  layout.on_gpu = on_gpu;
  return layout;
}

BatchShape least_shape(const Prepared& run, const TrainOptions& o, bool on_gpu) {
  return batch_shape(run, o, length_of(run.train, o, on_gpu));
}

// Without generation's memory: prompt lengths are known only when generation begins.
BetweenSteps least_between(const Prepared& run, const TrainOptions& o, bool on_gpu) {
  BetweenSteps between = between_steps(run, o, length_of(run.validation, o, on_gpu));
  between.generation.reset();
  return between;
}

// The plan of the stage that needs most.
const MemoryPlan& most_of(const std::vector<MemoryPlan>& stages) {
  return *std::ranges::max_element(stages, {}, &MemoryPlan::tensors);
}

// The largest need of any rank; empty without a plan.
std::optional<MemoryPlan> need_of(const Prepared& run, const TrainOptions& o, int64_t ranks,
                                  bool on_gpu) {
  try {
    return most_of(memory_plan(layout_of(run, o, ranks, on_gpu), least_shape(run, o, on_gpu),
                               Card{}, least_between(run, o, on_gpu)));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<MemoryPlan> plans_of(const Prepared& run, const TrainOptions& o, int64_t ranks,
                                 bool on_gpu) {
  return plan_or_warn(layout_of(run, o, ranks, on_gpu), least_shape(run, o, on_gpu), Card{},
                      least_between(run, o, on_gpu));
}

TrainOptions with_recomputed(TrainOptions o, const std::vector<int64_t>& blocks) {
  o.parallel.recomputed_blocks = blocks;
  return o;
}

TrainOptions with_rows_of_at_most(int64_t most, TrainOptions o) {
  for (int64_t* rows :
       {&o.training.per_device_train_batch_size, &o.training.per_device_eval_batch_size}) {
    *rows = std::min(*rows, most);
  }
  return o;
}

std::string describe(const MemoryPlan& need) {
  const StateMemory& state = need.state;
  std::string text =
      concat("One rank needs about ", mebibytes(need.tensors()), ": parameters ",
             mebibytes(state.parameter_bytes), ", gradients ", mebibytes(state.gradient_bytes),
             ", optimizer ", mebibytes(state.optimizer_bytes), ", activations about ",
             mebibytes(need.running() + need.workspace));
  if (state.buffer_bytes > 0) text += ", buffers " + mebibytes(state.buffer_bytes);
  if (state.host_bytes > 0) text += "; on the host " + mebibytes(state.host_bytes);
  return text;
}

}  // namespace

std::string memory_need(const Prepared& run, int64_t ranks, bool on_gpu,
                        const std::vector<int64_t>& recomputed) {
  const std::vector<MemoryPlan> stages =
      plans_of(run, with_recomputed(run.options, recomputed), ranks, on_gpu);
  return stages.empty() ? "memory is not planned" : describe(most_of(stages));
}

AvailableMemory available_memory(at::Device device) {
  return {
      .host = available_host_memory(),
      .device = device.is_cpu() ? 0 : static_cast<int64_t>(tessera::device_memory(device).first)};
}

std::optional<std::string> check_memory(const Prepared& run, at::Device device, int64_t ranks,
                                        int64_t ranks_on_host, const AvailableMemory& available,
                                        const std::vector<int64_t>& recomputed) {
  const bool on_gpu = !device.is_cpu();
  // Message about missing memory, or "".
  const auto missing = [&](const std::vector<MemoryPlan>& stages) -> std::string {
    double wanted = 0, on_host = 0;  // need of the largest rank, and of this host's ranks
    for (const MemoryPlan& stage : stages) {
      wanted = std::max(wanted, stage.tensors());
      on_host += (stage.state.host_bytes + (on_gpu ? 0 : stage.tensors())) *
                 static_cast<double>(ranks_on_host) / static_cast<double>(stages.size());
    }
    const auto host = static_cast<double>(available.host),
               card = static_cast<double>(available.device);
    if (on_host > host) {
      return concat(ranks_on_host, " rank(s) on this host need ", mebibytes(on_host), ", ",
                    mebibytes(host), " are available");
    }
    if (!on_gpu || wanted <= card) return "";
    return concat("a rank's tensors on ", device_name(device), " need ", mebibytes(wanted), ", ",
                  mebibytes(card), " are available");
  };
  const TrainOptions o = with_recomputed(run.options, recomputed);
  // Planning takes time in proportion to packed rows, so a layout that cannot fit is rejected with
  // fewer rows.
  const int64_t most =
      std::max(o.training.per_device_train_batch_size, o.training.per_device_eval_batch_size);
  for (int64_t rows = 4096; o.data.packing && rows < most; rows *= 8) {
    const std::string text = missing(plans_of(run, with_rows_of_at_most(rows, o), ranks, on_gpu));
    check(text.empty(), ErrorCode::kResourceExhausted, "with micro-batches of only ", rows,
          " rows ", text, ". --per_device_train_batch_size is ",
          o.training.per_device_train_batch_size, ", --per_device_eval_batch_size ",
          o.training.per_device_eval_batch_size,
          ": choose less (tessera-plan --fit finds what fits)");
  }
  const std::vector<MemoryPlan> stages = plans_of(run, o, ranks, on_gpu);
  const std::string text = missing(stages);
  if (!text.empty()) {
    fail(ErrorCode::kResourceExhausted, memory_advice(run, ranks, text, on_gpu, recomputed));
  }
  return stages.empty() ? std::nullopt : std::optional(describe(most_of(stages)));
}

std::string mebibytes(double bytes) {
  return printed(bytes < 100 * 1048576 ? "%.1f MiB" : "%.0f MiB", bytes / 1048576);
}

std::string advice_without_plan(const std::string& reason) {
  return reason.substr(0, reason.find('\n')) +
         ". Memory is not planned; what usually helps: --gradient_checkpointing, a smaller "
         "--per_device_train_batch_size, --strategy zero3 on more ranks";
}

std::string memory_advice(const Prepared& run, int64_t ranks, const std::string& reason,
                          bool on_gpu, const std::vector<int64_t>& recomputed) {
  const TrainOptions o = with_recomputed(run.options, recomputed);
  const std::string problem = reason.substr(0, reason.find('\n'));
  const auto now = need_of(run, o, ranks, on_gpu);
  if (!now) return advice_without_plan(reason);
  struct Option {
    std::string flags;
    double saved;
  };
  std::vector<Option> options;
  auto add = [&](const std::string& flags, const TrainOptions& changed, int64_t changed_ranks) {
    if (const auto need = need_of(run, changed, changed_ranks, on_gpu)) {
      options.push_back({flags, now->tensors() - need->tensors()});
    }
  };
  TrainOptions sharded = o;
  sharded.parallel.strategy = name_of(StrategyKind::kZero3);
  const int64_t more = ranks == 1                                      ? 4
                       : is(o.parallel.strategy, StrategyKind::kZero3) ? 2 * ranks
                                                                       : ranks;
  add(concat("--strategy ", sharded.parallel.strategy,
             more == ranks ? "" : concat(" on ", more, " ranks")),
      sharded, more);
  if (o.parallel.precision.parameter == at::kFloat) {
    TrainOptions changed = o;
    changed.parallel.precision.parameter = at::kBFloat16;
    add("--dtype bf16", changed, ranks);
  }
  if (o.training.per_device_train_batch_size > 1) {
    TrainOptions changed = o;
    changed.training.per_device_train_batch_size = (o.training.per_device_train_batch_size + 1) / 2;
    add(concat("--per_device_train_batch_size ", changed.training.per_device_train_batch_size,
               " --gradient_accumulation_steps ", o.training.gradient_accumulation_steps * 2),
        changed, ranks);
  }
  TrainOptions shorter = o;
  shorter.data.max_seq_length = std::max<int64_t>(1, length_of(run.train, o, /*on_gpu=*/false) / 2);
  add(concat("--max_seq_length ", shorter.data.max_seq_length), shorter, ranks);
  if (!o.parallel.gradient_checkpointing && o.memory.activations.empty()) {
    TrainOptions changed = o;
    changed.parallel.gradient_checkpointing = true;
    add("--gradient_checkpointing", changed, ranks);
  }
  if (run.imported.empty() && run.language_model.config().experts > 0 &&
      !o.parallel.recompute_experts && !o.parallel.gradient_checkpointing) {
    TrainOptions changed = o;
    changed.parallel.recompute_experts = true;
    add("--recompute_experts", changed, ranks);
  }
  if (run.config().heads % (2 * o.axes.tensor) == 0) {
    TrainOptions changed = o;
    changed.axes.tensor *= 2;
    add(concat("--tensor_parallel ", changed.axes.tensor, " on ", 2 * ranks, " ranks"), changed,
        2 * ranks);
  }
  if (!o.parallel.offload.activations && on_gpu && o.memory.activations.empty()) {
    TrainOptions changed = o;
    changed.parallel.gradient_checkpointing = true;
    changed.parallel.offload.activations = true;
    const char* const more = o.parallel.gradient_checkpointing ? "" : "--gradient_checkpointing ";
    add(concat(more, "--offload ", offload_name(changed.parallel)), changed, ranks);
  }
  if (o.parallel.offload.what == Offload::kNone && on_gpu) {
    TrainOptions changed = o;
    changed.parallel.offload.what = Offload::kOptimizer;
    add(concat("--offload ", offload_name(changed.parallel)), changed, ranks);
  }
  const std::string& kept = o.memory.offload_gpu;
  if (o.parallel.offload.what == Offload::kOptimizer && !kept.empty() && kept != "0") {
    TrainOptions changed = o;
    changed.memory.offload_gpu = "0";
    add("--offload_keep_on_gpu 0", changed, ranks);
  }
  std::stable_sort(options.begin(), options.end(),
                   [](const Option& a, const Option& b) { return a.saved > b.saved; });
  if (o.parallel.save_norm_outputs) {  // cheapest advice first
    TrainOptions changed = o;
    changed.parallel.save_norm_outputs = false;
    const auto need = need_of(run, changed, ranks, on_gpu);
    const double saved = need ? now->tensors() - need->tensors() : 0;
    if (saved > 0) options.insert(options.begin(), {"--save_norm_outputs false", saved});
  }
  std::string text = concat(problem, ". ", describe(*now), ". What would help:");
  for (size_t i = 0; i < std::min<size_t>(3, options.size()); ++i) {
    text += concat(i == 0 ? " " : "; ", options[i].flags, " saves ", mebibytes(options[i].saved));
  }
  return text;
}

}  // namespace tessera::programs
