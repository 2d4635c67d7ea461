// SPDX-License-Identifier: MIT
#include "lib/run/offload_share.h"

#include <utility>

#include "lib/plan/memory_plan.h"
#include "lib/run/layout.h"
#include "lib/run/recomputation.h"

namespace tessera::programs {

int64_t choose_device_bytes(PlannedLayout layout, const BatchShape& largest, at::Device device,
                            const AvailableMemory& available, const BetweenSteps& between) {
  if (device.is_cpu()) return 0;
  layout.on_gpu = true;
  const Card card = card_in_use(device);
  if (plan_or_warn(layout, largest, card, between).empty()) return 0;
  return room_for_state(layout, largest, card, static_cast<double>(available.device), between);
}

int64_t choose_device_bytes(const Prepared& run, const ParallelConfig& config, at::Device device,
                            int64_t ranks, const AvailableMemory& available) {
  if (device.is_cpu()) return 0;
  PlannedLayout layout = planned_layout(run, run.options, static_cast<int>(ranks));
  layout.parallel = config;
  return choose_device_bytes(std::move(layout), largest_shape(run, run.options), device, available,
                             between_steps(run, run.options, run.options.data.max_seq_length));
}

}  // namespace tessera::programs
