// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/planned_choices.h"

#include <algorithm>

#include "lib/run/layout.h"
#include "lib/run/offload_share.h"
#include "lib/run/recomputation.h"
#include "lib/settings/memory_size.h"
#include "tessera/core/error.h"

namespace tessera::bench {

PlannedChoices choose_by_plan(const PlannedRow& row, ParallelConfig& config) {
  PlannedChoices choices;
  const auto& memory = row.options.run.memory;
  const at::Device device = row.world.device();
  const auto layout = [&] {
    return programs::planned_layout(row.model, config, row.options.run, row.world.size());
  };
  const auto largest = [&] {
    return programs::batch_shape(row.micro_batch, row.options.run.data.max_seq_length,
                                 row.options.rows == "packed");
  };
  if (!memory.activations.empty()) {
    const auto stages = programs::choose_recomputation(memory.activations, layout(), largest(),
                                                       device, row.available());
    const std::string missing = programs::missing_activation_memory(stages, memory.activations);
    check(missing.empty(), ErrorCode::kResourceExhausted, missing);
    config.recomputed_blocks = blocks_of(stages);
    for (const StageRecomputation& stage : stages) {
      choices.recomputed_blocks = std::max(choices.recomputed_blocks, std::ssize(stage.blocks));
      choices.activation_bytes =
          std::max(choices.activation_bytes, static_cast<int64_t>(stage.held()));
    }
  }
  const auto kept = programs::parse_offload_gpu_memory(memory.offload_gpu);
  if (config.offload.what == Offload::kOptimizer && kept && kept->automatic) {
    choices.device_bytes = config.offload.device_bytes =
        programs::choose_device_bytes(layout(), largest(), device, row.available());
  }
  return choices;
}

}  // namespace tessera::bench
