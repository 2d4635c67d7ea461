// SPDX-License-Identifier: MIT
#include "lib/run/recomputation.h"

#include <algorithm>
#include <cmath>

#include "lib/core/joined.h"
#include "lib/run/device_memory.h"
#include "lib/run/layout.h"
#include "lib/settings/memory_size.h"
#include "tessera/core/error.h"
#include "tessera/plan/dry_step.h"

namespace tessera::programs {

BatchShape largest_shape(const Prepared& run, const TrainOptions& o) {
  const bool all_alike = o.data.pad_to_max_length || o.data.packing || run.train.size() == 0;
  if (all_alike) return batch_shape(run, o, o.data.max_seq_length);
  const int64_t multiple = o.data.pad_to_multiple_of, longest = run.train.longest();
  const int64_t padded = (longest + multiple - 1) / multiple * multiple;
  BatchShape shape = batch_shape(run, o, std::min(o.data.max_seq_length, padded));
  for (int64_t row = 0; row < run.train.size() && !shape.varies; ++row) {
    shape.varies = std::ssize(run.train.row(row).input_ids) != longest;
  }
  return shape;
}

Card card_in_use(at::Device device) {
  if (device.is_cpu()) return card_named("cpu");
  Card card = card_of_device(device_name(device)).value_or(card_named("h100"));
  card.context_bytes = 0;
  return card;
}

std::vector<StageRecomputation> choose_recomputation(const std::string& asked_text,
                                                     PlannedLayout layout,
                                                     const BatchShape& largest, at::Device device,
                                                     const AvailableMemory& available) {
  const auto asked = parse_activation_memory(asked_text);
  if (!asked) return {};
  layout.on_gpu = !device.is_cpu();
  const int64_t free = device.is_cpu() ? available.host : available.device;
  ActivationLimit limit{.bytes = asked->bytes};
  if (asked->automatic) limit.memory = static_cast<double>(std::max<int64_t>(1, free));
  try {
    return choose_recomputation(layout, largest, card_in_use(device), limit);
  } catch (const NotDry& error) {
    const std::string what = error.what();
    const size_t end = what.find(". ");
    fail(ErrorCode::kInvalidArgument,
         "--activation_memory needs a memory plan, and there is none: ", what.substr(0, end),
         ". Leave it out, or give --gradient_checkpointing");
  }
}

std::vector<StageRecomputation> choose_recomputation(const Prepared& run,
                                                     const ParallelConfig& config,
                                                     at::Device device, int64_t ranks,
                                                     const AvailableMemory& available) {
  const std::string& asked = run.options.memory.activations;
  if (asked.empty()) return {};
  PlannedLayout layout = planned_layout(run, run.options, static_cast<int>(ranks));
  layout.parallel = config;
  return choose_recomputation(asked, std::move(layout), largest_shape(run, run.options), device,
                              available);
}

std::string missing_activation_memory(const std::vector<StageRecomputation>& stages,
                                      const std::string& asked) {
  double most = 0, allowed = 0;
  size_t worst = 0;
  bool fits = true;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    fits = fits && stages[stage].fits;
    const double over = stages[stage].held() - stages[stage].allowed;
    if (stages[stage].fits || (worst > 0 && over <= most - allowed)) continue;
    worst = stage + 1;
    most = stages[stage].held();
    allowed = stages[stage].allowed;
  }
  if (fits) return "";
  const StageRecomputation& stage = stages[worst - 1];
  const std::string which = stages.size() > 1 ? concat("a rank of stage ", worst - 1) : "a rank";
  const std::string remedy =
      asked == "auto"
          ? ""
          : concat("; --activation_memory ", std::ceil(most / (1 - kActivationReserve) / 0x1p20),
                   "MiB is the least here");
  return concat("--activation_memory ", asked, " allows ", mebibytes(allowed),
                " beside a reserve, and ", which, " holds ", mebibytes(most),
                " of activations at the least, with ", stage.blocks.size(), " of ", stage.able,
                " blocks recomputed", remedy);
}

void require_fitting(const Prepared& run, const std::vector<StageRecomputation>& stages,
                     int64_t ranks, bool on_gpu) {
  const std::string missing = missing_activation_memory(stages, run.options.memory.activations);
  if (missing.empty()) return;
  fail(ErrorCode::kResourceExhausted,
       memory_advice(run, ranks, missing, on_gpu, blocks_of(stages)));
}

std::string counts_text(const std::vector<StageRecomputation>& stages) {
  std::vector<std::string> counts;
  for (const StageRecomputation& stage : stages) {
    counts.push_back(concat(stage.blocks.size(), " of ", stage.able));
  }
  return joined(counts) + " blocks";
}

double more_operations(double share, bool trains_adapters) {
  return share * (trains_adapters ? 1.0 / 2 : 1.0 / 3);
}

}  // namespace tessera::programs
