// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/planned_choices.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/run/offload_share.h"
#include "lib/run/optimizer.h"
#include "lib/run/recomputation.h"
#include "lib/settings/layout.h"
#include "lib/settings/memory_size.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

// What the rank with least has, of a host its share.
programs::AvailableMemory least_available(const PlannedRow& row) {
  const programs::AvailableMemory own = programs::available_memory(row.world.device());
  at::Tensor least =
      at::tensor({own.host / row.ranks_on_host, own.device}, at::kLong).to(row.world.device());
  row.world.all_reduce(least, ReduceOp::kMin).wait();
  least = least.cpu();
  return {.host = least[0].item<int64_t>(), .device = least[1].item<int64_t>()};
}

LayoutPlan layout_plan(const PlannedRow& row, const ParallelConfig& config) {
  LayoutPlan plan{.parallel = config,
                  .mesh = programs::mesh_extents(row.options.run, row.world.size()),
                  .accumulation = row.options.run.training.gradient_accumulation_steps,
                  .model = row.model};
  plan_optimizer(plan, programs::optimizer_of(row.options.run.training));
  return plan;
}

BatchShape largest_batch(const PlannedRow& row) {
  const int64_t length = row.options.run.data.max_seq_length;
  BatchShape shape{.rows = row.micro_batch, .length = length};
  if (row.options.rows == "packed") {
    shape.packed.assign(static_cast<size_t>(row.micro_batch), length);
    shape.sequence = length;
  }
  return shape;
}

}  // namespace

PlannedChoices choose_by_plan(const PlannedRow& row, ParallelConfig& config) {
  PlannedChoices choices;
  const auto& memory = row.options.run.memory;
  const at::Device device = row.world.device();
  if (!memory.activations.empty()) {
    const auto stages =
        programs::choose_recomputation(memory.activations, layout_plan(row, config),
                                       largest_batch(row), device, least_available(row));
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
    choices.device_bytes = config.offload.device_bytes = programs::choose_device_bytes(
        layout_plan(row, config), largest_batch(row), device, least_available(row));
  }
  return choices;
}

}  // namespace tessera::bench
